//! Whether a server is what `target_session_attrs` wants.
//!
//! Owns: what a server reports or answers about its role, and which roles fit. Never: a socket.

use crate::settings::TargetSessionAttrs;

/// Asks a server that reports nothing of its role, and one whose role is in doubt. What a client has set since the login
/// does not matter, and no search_path changes what the names mean.
pub const QUESTION: &str = "SELECT pg_catalog.pg_is_in_recovery(), reset_val FROM pg_catalog.pg_settings \
                            WHERE name OPERATOR(pg_catalog.=) 'default_transaction_read_only'";

const IN_HOT_STANDBY: &[u8] = b"in_hot_standby";
const READ_ONLY: &str = "default_transaction_read_only";

/// What a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Role {
    standby: bool,
    /// Transactions are read-only unless they say otherwise.
    read_only: bool,
}

impl Role {
    /// By the parameters that come with a login; servers before 14 and some poolers report none of these.
    pub fn reported(params: &[(Vec<u8>, Vec<u8>)]) -> Option<Self> {
        let is_on =
            |wanted: &[u8]| params.iter().find(|(name, _)| name == wanted).map(|(_, value)| value == b"on");
        Some(Self { standby: is_on(IN_HOT_STANDBY)?, read_only: is_on(READ_ONLY.as_bytes())? })
    }

    /// By the row that answers [`QUESTION`].
    pub fn answered(row: &[Option<&[u8]>]) -> Option<Self> {
        let [Some(standby), Some(read_only)] = row else { return None };
        Some(Self { standby: *standby == b"t", read_only: *read_only == b"on" })
    }

    /// Without what the login itself asked for: a client that wants read-only transactions changes nobody's role.
    #[must_use]
    pub fn unless_asked_for<'s>(self, mut startup: impl Iterator<Item = (&'s str, &'s str)>) -> Self {
        let asked = startup.any(|(name, _)| name.eq_ignore_ascii_case(READ_ONLY));
        Self { read_only: self.read_only && !asked, ..self }
    }

    /// Why `attrs` does not want a server of this role; `None`: it does.
    pub fn unfit_for(self, attrs: TargetSessionAttrs) -> Option<&'static str> {
        use TargetSessionAttrs::{Any, PreferStandby, Primary, ReadOnly, ReadWrite, Standby};
        match (attrs, self.standby, self.read_only) {
            (ReadWrite | Primary, true, _) => Some("in hot standby"),
            (ReadWrite, false, true) => Some("default_transaction_read_only is on"),
            (ReadOnly, false, false) => Some("takes writes"),
            (Standby | PreferStandby, false, _) => Some("not in hot standby"),
            (Any | ReadWrite | ReadOnly | Primary | Standby | PreferStandby, ..) => None,
        }
    }
}

/// Does this report mean that a server's role has changed? It is sent once a standby was promoted.
pub fn is_changed_by(name: &[u8]) -> bool {
    name == IN_HOT_STANDBY
}

#[cfg(test)]
mod tests {
    use super::*;
    use TargetSessionAttrs as Attrs;

    const fn role(standby: bool, read_only: bool) -> Role {
        Role { standby, read_only }
    }

    #[test]
    fn roles_fit_as_libpq_has_it() {
        let all = [role(false, false), role(false, true), role(true, false), role(true, true)];
        for (attrs, fit) in [
            (Attrs::Any, [true; 4]),
            (Attrs::ReadWrite, [true, false, false, false]),
            (Attrs::ReadOnly, [false, true, true, true]),
            (Attrs::Primary, [true, true, false, false]),
            (Attrs::Standby, [false, false, true, true]),
            (Attrs::PreferStandby, [false, false, true, true]),
        ] {
            assert_eq!(all.map(|role| role.unfit_for(attrs).is_none()), fit, "{attrs:?}");
        }
    }

    #[test]
    fn a_role_is_reported_or_answered_as_a_whole() {
        let report = |names: &[(&str, &str)]| {
            let params: Vec<_> =
                names.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect();
            Role::reported(&params)
        };
        let both = report(&[("in_hot_standby", "off"), ("default_transaction_read_only", "on")]);
        assert_eq!(both, Some(role(false, true)));
        assert_eq!(report(&[("in_hot_standby", "on")]), None);
        assert_eq!(report(&[]), None);
        assert_eq!(Role::answered(&[Some(b"t"), Some(b"off")]), Some(role(true, false)));
        assert_eq!(Role::answered(&[Some(b"t"), None]), None);
        assert_eq!(Role::answered(&[]), None);
    }

    #[test]
    fn what_a_client_asked_for_is_no_role() {
        let asked = [("Default_Transaction_Read_Only", "on")];
        assert_eq!(role(false, true).unless_asked_for(asked.into_iter()), role(false, false));
        assert_eq!(role(true, true).unless_asked_for(std::iter::empty()), role(true, true));
    }
}
