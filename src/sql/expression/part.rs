//! What the server may reduce a part of an expression to while it plans for certain parameters.
//!
//! It computes what has become constant then (`COALESCE($1, t.a)` is `$1` where that is not NULL), with an error, perhaps, also where its
//! value is never needed; where it plans for any parameters it does not. Owns: which constants those are, for each way of putting
//! parts together (`eval_const_expressions` of PostgreSQL, of whatever release). Says rather too many. Never: what may fail.

use super::BOOL;

/// Most constants told apart for one part.
const CONSTANTS_MAX: usize = 16;

/// What a part may be reduced to, beside NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Constant {
    /// The value of a parameter.
    Param(u16),
    /// A number.
    Integer(i64),
    /// A string of no type.
    Text,
    /// A value of this type.
    Of(u16),
    /// Anything.
    Unknown,
}

/// What becomes of NULL in a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nulls {
    /// The function is strict: NULL.
    Pass,
    /// A value, as of others: it is called with it.
    Count,
    /// One or the other: there are several functions of its name.
    Either,
}

/// What is known of a part of an expression.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// It hangs on a row, or on when it is computed.
    pub(super) waits: bool,
    /// It hangs on parameters.
    pub(super) param: bool,
    /// What it may be reduced to ...
    pub(super) constants: Vec<Constant>,
    /// ... and may that be NULL?
    pub(super) null: bool,
}

impl Part {
    pub(super) fn null() -> Self {
        Self { null: true, ..Self::default() }
    }

    pub(super) fn constant(constant: Constant) -> Self {
        Self { constants: vec![constant], ..Self::default() }
    }

    pub(super) fn param(number: u16) -> Self {
        Self { param: true, null: true, ..Self::constant(Constant::Param(number)) }
    }

    /// Never a constant.
    pub(super) fn waits() -> Self {
        Self { waits: true, ..Self::default() }
    }

    /// Made of these, and of nothing else.
    fn of(parts: &[Self]) -> Self {
        let mut made = Self::default();
        parts.iter().for_each(|part| made.holds(part));
        made
    }

    fn holds(&mut self, part: &Self) {
        self.waits |= part.waits;
        self.param |= part.param;
    }

    /// All constants of the other's are its own, too. Of many of them it is not told apart which.
    fn or(&mut self, other: &Self) {
        for constant in &other.constants {
            if self.constants.len() >= CONSTANTS_MAX {
                self.constants = vec![Constant::Unknown];
            }
            if !self.constants.contains(constant) && !self.constants.contains(&Constant::Unknown) {
                self.constants.push(*constant);
            }
        }
    }

    fn is_foldable(&self) -> bool {
        self.null || !self.constants.is_empty()
    }

    /// May all of them be constants, and none of them NULL? Then what is made of them is computed. (Of a NULL nothing is that could
    /// fail: those functions that are not strict append it to arrays.)
    pub(super) fn fold(parts: &[Self]) -> bool {
        parts.iter().all(|part| !part.constants.is_empty())
    }

    /// A function of these, or an operator, a cast.
    pub(super) fn call(parts: &[Self], nulls: Nulls) -> Self {
        let mut made = Self::of(parts);
        let all = parts.iter().all(Self::is_foldable);
        made.null = match nulls {
            Nulls::Count => all,
            Nulls::Pass | Nulls::Either => parts.iter().any(|part| part.null),
        };
        if Self::fold(parts) {
            made.constants.push(Constant::Unknown);
        } else if all && nulls != Nulls::Pass {
            // With NULL among them: the others, or an array of both.
            parts.iter().for_each(|part| made.or(part));
            if made.constants.is_empty() {
                made.constants.push(Constant::Unknown);
            }
        }
        made
    }

    /// AND, OR, NOT: one of them may settle it.
    pub(super) fn logic(parts: &[Self]) -> Self {
        let mut made = Self::of(parts);
        made.null = parts.iter().any(|part| part.null);
        if parts.iter().any(|part| !part.constants.is_empty()) {
            made.constants.push(Constant::Of(BOOL));
        }
        made
    }

    /// IS TRUE, IS DISTINCT FROM: never NULL.
    pub(super) fn test(parts: &[Self]) -> Self {
        let mut made = Self::of(parts);
        if parts.iter().any(Self::is_foldable) {
            made.constants.push(Constant::Of(BOOL));
        }
        made
    }

    /// IS NULL. Of a column that is NOT NULL some releases know the answer.
    pub(super) fn null_test(part: &Self) -> Self {
        Self { constants: vec![Constant::Of(BOOL)], ..Self::of(std::slice::from_ref(part)) }
    }

    /// NULLIF: the first, or NULL.
    pub(super) fn null_if(parts: &[Self]) -> Self {
        let mut made = Self::of(parts);
        if let Some(first) = parts.first() {
            made.constants.clone_from(&first.constants);
            made.null = first.null || Self::fold(parts);
        }
        made
    }

    /// Those in front are left out where they are NULL, and those behind where one is not.
    pub(super) fn coalesce(parts: &[Self]) -> Self {
        let mut made = Self::of(parts);
        made.null = parts.iter().all(|part| part.null);
        for part in parts {
            made.or(part);
            if !part.null {
                break;
            }
        }
        made
    }

    /// CASE: conditions and their results, and what is behind ELSE. A condition that is constant is left out, or all that
    /// is behind it.
    pub(super) fn case(whens: &[(Self, Self)], otherwise: &Self) -> Self {
        let mut made = Self::default();
        for (condition, result) in whens {
            made.holds(condition);
            made.holds(result);
        }
        made.holds(otherwise);
        for (condition, result) in whens {
            if !condition.constants.is_empty() {
                made.or(result);
                made.null |= result.null;
            }
            if !condition.is_foldable() {
                return made;
            }
        }
        made.or(otherwise);
        made.null |= otherwise.null;
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constants(part: &Part) -> (&[Constant], bool) {
        (&part.constants, part.null)
    }

    #[test]
    fn what_holds_a_column_may_be_a_parameter_alone() {
        let (column, param) = (Part::waits(), Part::param(2));
        let two = [Constant::Param(2)];
        let first = Part::coalesce(&[param.clone(), column.clone()]);
        assert_eq!((constants(&first), first.waits, first.param), ((&two[..], false), true, true));
        let last = Part::coalesce(&[column.clone(), param.clone()]);
        assert_eq!(constants(&last), (&[][..], false));
        // Where the column is left out because it is added to NULL.
        let sum = Part::call(&[column.clone(), param.clone()], Nulls::Pass);
        assert_eq!(constants(&sum), (&[][..], true));
        assert_eq!(constants(&Part::coalesce(&[sum.clone(), param.clone()])), (&two[..], true));
        let greatest = Part::call(&[column.clone(), param.clone()], Nulls::Count);
        assert_eq!(constants(&greatest), (&[][..], false));
        let greatest = Part::call(&[sum.clone(), param.clone()], Nulls::Count);
        assert_eq!(constants(&greatest), (&two[..], true));
        let array = Part::call(std::slice::from_ref(&sum), Nulls::Count);
        assert_eq!(array.constants, [Constant::Unknown]);
        assert_eq!(constants(&Part::null_if(&[column.clone(), param.clone()])), (&[][..], false));
        assert_eq!(constants(&Part::null_if(&[param.clone(), param.clone()])), (&two[..], true));
    }

    #[test]
    fn conditions_may_be_settled() {
        let (column, param) = (Part::waits(), Part::param(2));
        let bool = [Constant::Of(BOOL)];
        assert_eq!(constants(&Part::logic(&[column.clone(), param.clone()])), (&bool[..], true));
        assert_eq!(constants(&Part::logic(&[column.clone(), column.clone()])), (&[][..], false));
        assert_eq!(constants(&Part::test(&[column.clone(), param.clone()])), (&bool[..], false));
        assert_eq!(constants(&Part::test(std::slice::from_ref(&column))), (&[][..], false));
        assert_eq!(constants(&Part::null_test(&column)), (&bool[..], false));
        let one = Part::constant(Constant::Integer(1));
        let case = |condition: &Part, result: &Part, otherwise: &Part| {
            Part::case(&[(condition.clone(), result.clone())], otherwise)
        };
        assert_eq!(constants(&case(&column, &one, &param)), (&[][..], false));
        assert_eq!(constants(&case(&param, &one, &column)), (&[Constant::Integer(1)][..], false));
        // NULL is no reason for the first, but for the second.
        let sum = Part::call(&[column.clone(), param.clone()], Nulls::Pass);
        assert_eq!(constants(&case(&sum, &one, &column)), (&[][..], false));
        assert_eq!(constants(&case(&sum, &column, &one)), (&[Constant::Integer(1)][..], false));
        assert!(case(&column, &one, &param).param);
    }
}
