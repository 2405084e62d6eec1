//! One INSERT taken apart, token by token.

use std::ops::Range;

use memchr::memchr;

use super::{ALL_ITEMS_MAX, Class, ITEMS_MAX, Item, Lifted, NotPourable, are_plain_escapes, put_markers};
use crate::limits::NAME_BYTES_MAX;
use crate::sql::cast::{Cast, TypeName};
use crate::sql::expression;
use crate::sql::scan::{self, Kind, Scanner, Token};

/// Most tokens of an expression.
const EXPRESSION_TOKENS_MAX: usize = 256;

/// One lift.
pub(super) struct Lift<'a, 'o> {
    text: &'a [u8],
    tokens: Scanner<'a>,
    /// Where the last token ended.
    read: usize,
    /// What stood between two tokens was not ASCII.
    strange: bool,
    peeked: Option<Option<Token>>,
    columns: usize,
    /// An expression holds a constant that is another one each time.
    varies: bool,
    out: &'o mut Lifted,
}

impl<'a, 'o> Lift<'a, 'o> {
    pub(super) fn new(text: &'a [u8], out: &'o mut Lifted) -> Self {
        let tokens = scan::scan(text, true);
        Self { text, tokens, read: 0, strange: false, peeked: None, columns: 0, varies: false, out }
    }

    /// From its first word to its end.
    pub(super) fn statement(&mut self) -> Result<(), NotPourable> {
        self.keyword(b"insert", NotPourable::NotInsert)?;
        self.keyword(b"into", NotPourable::Syntax)?;
        self.target()?;
        self.alias()?;
        self.column_list()?;
        self.values()?;
        self.rows()?;
        self.tail()?;
        if self.strange {
            return Err(NotPourable::Comment);
        }
        self.check_params()
    }

    fn next(&mut self) -> Option<Token> {
        match self.peeked.take() {
            Some(token) => token,
            None => self.scan(),
        }
    }

    fn peek(&mut self) -> Option<Token> {
        if self.peeked.is_none() {
            self.peeked = Some(self.scan());
        }
        self.peeked.flatten()
    }

    #[inline]
    fn scan(&mut self) -> Option<Token> {
        let token = self.tokens.next();
        let (start, end) = token.map_or((self.text.len(), self.text.len()), |token| (token.start, token.end));
        self.strange |= !self.text[self.read..start].is_ascii();
        self.read = end;
        token
    }

    fn bytes(&self, token: Token) -> &'a [u8] {
        &self.text[token.start..token.end]
    }

    fn is_word(&self, token: Option<Token>, word: &[u8]) -> bool {
        token.is_some_and(|t| t.kind == Kind::Word && self.bytes(t).eq_ignore_ascii_case(word))
    }

    fn is_byte(&self, token: Option<Token>, byte: u8) -> bool {
        token.is_some_and(|t| t.kind == Kind::Punctuation && self.text[t.start] == byte)
    }

    /// The next token must be this keyword.
    fn keyword(&mut self, word: &[u8], otherwise: NotPourable) -> Result<(), NotPourable> {
        let token = self.next();
        if !self.is_word(token, word) {
            return Err(otherwise);
        }
        self.out.shape.extend_from_slice(word);
        self.out.shape.push(b' ');
        Ok(())
    }

    /// `name` or `schema.name`.
    fn target(&mut self) -> Result<(), NotPourable> {
        self.name()?;
        let dot = self.peek();
        if self.is_byte(dot, b'.') {
            self.next();
            self.out.shape.push(b'.');
            self.name()?;
            let dot = self.peek();
            if self.is_byte(dot, b'.') {
                return Err(NotPourable::Name);
            }
        }
        Ok(())
    }

    /// `AS alias`: another name for the table in what follows the rows.
    fn alias(&mut self) -> Result<(), NotPourable> {
        let word = self.peek();
        if !self.is_word(word, b"as") {
            return Ok(());
        }
        self.out.shape.push(b' ');
        self.keyword(b"as", NotPourable::Syntax)?;
        // No COPY has it, so none would be refused for bytes that are no characters of the client's encoding.
        if self.peek().is_some_and(|alias| !self.bytes(alias).is_ascii()) {
            return Err(NotPourable::Name);
        }
        self.name()
    }

    /// One identifier, into the shape as spelled.
    fn name(&mut self) -> Result<(), NotPourable> {
        let token = self.next().ok_or(NotPourable::Syntax)?;
        let bytes = self.bytes(token);
        let length = match token.kind {
            Kind::Word if !bytes.is_ascii() => return Err(NotPourable::Name),
            Kind::Word => bytes.len(),
            // A doubled quote counts twice: on the safe side.
            Kind::Quoted => bytes.len() - 2,
            Kind::UnicodeQuoted => return Err(NotPourable::Name),
            _ => return Err(NotPourable::Syntax),
        };
        if length == 0 || length > NAME_BYTES_MAX {
            return Err(NotPourable::Name);
        }
        self.out.shape.extend_from_slice(bytes);
        Ok(())
    }

    fn column_list(&mut self) -> Result<(), NotPourable> {
        let open = self.peek();
        if !self.is_byte(open, b'(') {
            return Ok(());
        }
        self.next();
        let first = self.peek();
        if self.is_byte(first, b'(') || self.is_word(first, b"select") || self.is_word(first, b"with") {
            return Err(NotPourable::NotValues);
        }
        self.out.shape.push(b'(');
        loop {
            self.name()?;
            self.columns += 1;
            match self.next() {
                t if self.is_byte(t, b',') => self.out.shape.push(b','),
                t if self.is_byte(t, b')') => break,
                t if self.is_byte(t, b'.') || self.is_byte(t, b'[') => return Err(NotPourable::Subscript),
                _ => return Err(NotPourable::Syntax),
            }
            if self.columns >= ITEMS_MAX {
                return Err(NotPourable::Count);
            }
        }
        self.out.shape.push(b')');
        Ok(())
    }

    /// VALUES, or why not.
    fn values(&mut self) -> Result<(), NotPourable> {
        let token = self.peek();
        let why = match token {
            t if self.is_word(t, b"default") => NotPourable::DefaultValues,
            t if self.is_word(t, b"overriding") => NotPourable::Overriding,
            t if self.is_byte(t, b'(') || self.is_word(t, b"select") => NotPourable::NotValues,
            t if self.is_word(t, b"with") || self.is_word(t, b"table") => NotPourable::NotValues,
            _ => NotPourable::Syntax,
        };
        self.out.shape.push(b' ');
        self.keyword(b"values", why)
    }

    fn rows(&mut self) -> Result<(), NotPourable> {
        self.row()?;
        let width = self.out.items.len();
        if self.columns != 0 && self.columns != width {
            return Err(NotPourable::Count);
        }
        self.out.rows = 1;
        self.out.shape.push(b'(');
        let start = self.out.shape.len();
        put_markers(self.text, &self.out.items, &self.out.types, &mut self.out.shape);
        self.out.row = start..self.out.shape.len();
        self.out.shape.push(b')');
        loop {
            let comma = self.peek();
            if !self.is_byte(comma, b',') {
                return Ok(());
            }
            self.next();
            self.row()?;
            self.out.rows += 1;
            if self.out.items.len() != self.out.rows * width {
                return Err(NotPourable::Count);
            }
            if self.out.items.len() > ALL_ITEMS_MAX {
                return Err(NotPourable::ManyRows);
            }
        }
    }

    fn row(&mut self) -> Result<(), NotPourable> {
        let Some(open) = self.next().filter(|&open| self.is_byte(Some(open), b'(')) else {
            return Err(NotPourable::Syntax);
        };
        let begin = self.out.items.len();
        if begin == 0 {
            self.out.head = open.end;
        }
        loop {
            let item = self.item()?;
            self.out.items.push(item);
            if self.out.items.len() - begin > ITEMS_MAX {
                return Err(NotPourable::Count);
            }
            let next = self.next();
            if !self.is_byte(next, b',') {
                return if self.is_byte(next, b')') { Ok(()) } else { Err(NotPourable::Expression) };
            }
        }
    }

    fn item(&mut self) -> Result<Item, NotPourable> {
        // Behind a parenthesis or comma, and nothing is read ahead.
        let (read, strange) = (self.read, self.strange);
        let types = self.out.types.len();
        let item = self.literal().and_then(|item| {
            let next = self.peek();
            let ended = self.is_byte(next, b',') || self.is_byte(next, b')');
            match next {
                _ if ended => Ok(item),
                None => Err(NotPourable::Syntax),
                Some(next) => Err(unlike_literal(next.kind)),
            }
        });
        if item != Err(NotPourable::Expression) {
            return item;
        }
        // No literal: from its beginning again, as an expression.
        self.tokens = scan::scan_from(self.text, read, true);
        (self.read, self.strange, self.peeked) = (read, strange, None);
        self.out.types.truncate(types);
        let (start, end) = self.expression(false).map_err(|_| NotPourable::Expression)?;
        self.out.tail.computed = true;
        Ok(Item { class: Class::Computed, start, end })
    }

    /// The tokens of an expression, up to what ends it, and where it stands. With `into_shape` they go there, too, with a blank where
    /// there is one, or a comment.
    fn expression(&mut self, into_shape: bool) -> Result<(usize, usize), NotPourable> {
        let (mut depth, mut range) = (0u32, None::<(usize, usize)>);
        for _ in 0..EXPRESSION_TOKENS_MAX {
            let Some(token) = self.peek().filter(|token| depth > 0 || !self.ends_expression(*token)) else {
                return range.filter(|_| depth == 0).ok_or(NotPourable::Expression);
            };
            self.next();
            let bytes = self.bytes(token);
            match token.kind {
                Kind::Param => {
                    self.out.computed_params = self.out.computed_params.max(param(bytes)?);
                }
                Kind::Integer | Kind::Decimal | Kind::String => {
                    self.varies |= !expression::is_habit(bytes);
                }
                Kind::Punctuation if matches!(bytes, b"(" | b"[") => depth += 1,
                Kind::Punctuation if matches!(bytes, b")" | b"]") => {
                    depth = depth.checked_sub(1).ok_or(NotPourable::Expression)?;
                }
                Kind::Punctuation if matches!(bytes, b"," | b".") => {}
                // Another table: nothing that is looked at any further.
                Kind::Word if bytes.eq_ignore_ascii_case(b"select") => return Err(NotPourable::Expression),
                Kind::Word if !bytes.is_ascii() => return Err(NotPourable::Name),
                Kind::Word | Kind::Quoted | Kind::Operator => {}
                kind => return Err(unlike_literal(kind)),
            }
            let (start, end) = range.unwrap_or((token.start, token.start));
            if into_shape {
                self.out.shape.extend_from_slice(if token.start > end { b" " } else { b"" });
                self.out.shape.extend_from_slice(bytes);
            }
            range = Some((start, token.end));
        }
        Err(NotPourable::Expression)
    }

    fn ends_expression(&self, token: Token) -> bool {
        let ends = |word: &[u8]| self.is_word(Some(token), word);
        matches!(self.bytes(token), b"," | b")" | b";") || ends(b"where") || ends(b"returning")
    }

    fn literal(&mut self) -> Result<Item, NotPourable> {
        let token = self.next().ok_or(NotPourable::Syntax)?;
        if !self.is_byte(Some(token), b'(') {
            return self.bare_item(token);
        }
        let inner = self.next().ok_or(NotPourable::Syntax)?;
        let item = self.bare_item(inner)?;
        self.close()?;
        // Not every version takes one there.
        if item.class == Class::Default { Err(NotPourable::Expression) } else { Ok(item) }
    }

    /// The next token must be `)`; where it ends.
    fn close(&mut self) -> Result<usize, NotPourable> {
        match self.next() {
            Some(token) if self.is_byte(Some(token), b')') => Ok(token.end),
            None => Err(NotPourable::Syntax),
            Some(token) => Err(unlike_literal(token.kind)),
        }
    }

    fn bare_item(&mut self, token: Token) -> Result<Item, NotPourable> {
        let (class, end) = match token.kind {
            Kind::String => self.string_item(token)?,
            Kind::EscapeString => (self.escaped_class(token)?, token.end),
            Kind::Integer => (Class::Integer, token.end),
            Kind::Decimal => (Class::Decimal, token.end),
            Kind::Word if self.bytes(token).eq_ignore_ascii_case(b"cast") => self.cast_item(token.start)?,
            Kind::Word => self.word_item(token)?,
            Kind::Param => self.param_item(token)?,
            Kind::Operator if self.bytes(token) == b"-" => self.signed(token)?,
            kind => return Err(unlike_literal(kind)),
        };
        Ok(Item { class, start: token.start, end })
    }

    /// NULL, perhaps with the name of a type, DEFAULT, TRUE or FALSE.
    fn word_item(&mut self, token: Token) -> Result<(Class, usize), NotPourable> {
        let class = self.word_class(token)?;
        let cast = if class == Class::Null { self.cast()? } else { None };
        Ok(cast.map_or((class, token.end), |(cast, end)| (Class::CastNull(cast), end)))
    }

    fn word_class(&self, token: Token) -> Result<Class, NotPourable> {
        let bytes = self.bytes(token);
        let classes: [(&[u8], Class); 4] = [
            (b"null", Class::Null),
            (b"default", Class::Default),
            (b"true", Class::True),
            (b"false", Class::False),
        ];
        let found = classes.iter().find(|(word, _)| bytes.eq_ignore_ascii_case(word));
        found.map(|(_, class)| *class).ok_or(NotPourable::Expression)
    }

    /// `$n`, perhaps with the name of its type, or with `text` and that.
    fn param_item(&mut self, token: Token) -> Result<(Class, usize), NotPourable> {
        let number = param(self.bytes(token))?;
        let Some((cast, end)) = self.cast()? else { return Ok((Class::Param(number), token.end)) };
        let outer = if cast.is_text() { self.cast()? } else { None };
        let (cast, end) = outer.map_or((cast, end), |(outer, end)| (outer.behind(cast), end));
        Ok((Class::CastParam(number, cast), end))
    }

    /// A plain string, perhaps with the name of a type.
    fn string_item(&mut self, token: Token) -> Result<(Class, usize), NotPourable> {
        match self.cast_of_string()? {
            None => Ok((Class::String, token.end)),
            // A quote in a comment before the name: see `without_cast`.
            Some((_, end)) if memchr(b'\'', &self.text[token.end..end]).is_some() => {
                Err(NotPourable::Expression)
            }
            Some((cast, end)) => Ok((Class::CastString(cast), end)),
        }
    }

    /// `E'...'`. One that goes on in another line has a quote alone in it.
    fn escaped_class(&self, token: Token) -> Result<Class, NotPourable> {
        let body = self.text.get(token.start + 2..token.end - 1).ok_or(NotPourable::Literal)?;
        if are_plain_escapes(body) { Ok(Class::Escaped) } else { Err(NotPourable::Literal) }
    }

    /// `::type`, or the same type twice: what a driver wrote, and what a generator of SQL wrote behind that.
    fn cast_of_string(&mut self) -> Result<Option<(Cast, usize)>, NotPourable> {
        let Some((cast, end)) = self.cast()? else { return Ok(None) };
        match self.cast()? {
            None => Ok(Some((cast, end))),
            Some((again, end)) if again.is_same(cast) => Ok(Some((again, end))),
            Some(_) => Err(NotPourable::Expression),
        }
    }

    /// `CAST(... AS type)` of a parameter, a plain string or NULL, or `CAST($n::text AS type)`; it begins at `start`.
    fn cast_item(&mut self, start: usize) -> Result<(Class, usize), NotPourable> {
        let open = self.next();
        if !self.is_byte(open, b'(') {
            return Err(NotPourable::Expression);
        }
        let value = self.next().ok_or(NotPourable::Syntax)?;
        let inner = if value.kind == Kind::Param { self.cast()? } else { None };
        let word = self.next();
        if !self.is_word(word, b"as") {
            return Err(NotPourable::Expression);
        }
        let (cast, _) = self.type_name(value.end)?;
        let end = self.close()?;
        let cast = match inner {
            None => cast,
            Some((inner, _)) if inner.is_text() => cast.behind(inner),
            Some(_) => return Err(NotPourable::Expression),
        };
        let quoted = |range: Range<usize>| memchr(b'\'', &self.text[range]).is_some();
        match value.kind {
            Kind::Param => Ok((Class::CastParam(param(self.bytes(value))?, cast), end)),
            // A quote in a comment: see `without_cast`.
            Kind::String if quoted(start..value.start) || quoted(value.end..end) => {
                Err(NotPourable::Expression)
            }
            Kind::String => Ok((Class::CastString(cast), end)),
            _ if self.is_word(Some(value), b"null") => Ok((Class::CastNull(cast), end)),
            kind => Err(unlike_literal(kind)),
        }
    }

    /// `::type`, and where it ends; `None`: something else follows.
    fn cast(&mut self) -> Result<Option<(Cast, usize)>, NotPourable> {
        let sign = self.peek();
        let Some(sign) = sign.filter(|t| t.kind == Kind::Operator && self.bytes(*t) == b"::") else {
            return Ok(None);
        };
        self.next();
        self.type_name(sign.end).map(Some)
    }

    /// A type, and where it ends, if it has words at all.
    fn type_name(&mut self, mut end: usize) -> Result<(Cast, usize), NotPourable> {
        let mut name = TypeName::default();
        while let Some(word) = self.peek().filter(|t| t.kind == Kind::Word) {
            // CAST($1::text AS ...
            if self.is_word(Some(word), b"as") {
                break;
            }
            self.next();
            name.push(self.bytes(word)).ok_or(NotPourable::Expression)?;
            end = word.end;
        }
        let next = self.peek();
        let quoted = next.is_some_and(|t| t.kind == Kind::Quoted);
        let cast = match name.meaning() {
            Some(cast) if !quoted && !self.is_byte(next, b'.') => cast,
            _ => return self.other_type(&name, end),
        };
        if self.is_byte(next, b'[') {
            let end = self.brackets()?;
            return Ok((cast.array().ok_or(NotPourable::Expression)?, end));
        }
        if !self.is_byte(next, b'(') {
            return Ok((cast, end));
        }
        self.next();
        let (precision, scale, end) = self.modifier()?;
        let cast = cast.with_modifier(precision, scale).ok_or(NotPourable::Expression)?;
        Ok((cast, end))
    }

    /// `name` or `schema.name`, perhaps `[]`: a type that the grammar does not know. What it begins with is read if it is a word.
    fn other_type(&mut self, word: &TypeName, mut end: usize) -> Result<(Cast, usize), NotPourable> {
        let (mut schema, mut name) = (None, word.other());
        if word.is_empty() {
            (name, end) = self.identifier()?;
        }
        let dot = self.peek();
        if self.is_byte(dot, b'.') {
            self.next();
            schema = Some(name.ok_or(NotPourable::Expression)?);
            (name, end) = self.identifier()?;
        }
        let open = self.peek();
        let array = self.is_byte(open, b'[');
        if array {
            end = self.brackets()?;
        }
        let name = name.ok_or(NotPourable::Expression)?;
        let cast = Cast::of_name(schema, name, array, &mut self.out.types);
        Ok((cast.ok_or(NotPourable::Expression)?, end))
    }

    /// A name as the server folds it, and where it ends. `None`: it is none that may be a type's.
    fn identifier(&mut self) -> Result<(Option<String>, usize), NotPourable> {
        let token = self.next().ok_or(NotPourable::Syntax)?;
        let bytes = self.bytes(token);
        let name = match token.kind {
            Kind::Word => {
                let mut name = TypeName::default();
                name.push(bytes).and_then(|()| name.other())
            }
            Kind::Quoted => {
                std::str::from_utf8(&bytes[1..bytes.len() - 1]).ok().map(|name| name.replace("\"\"", "\""))
            }
            _ => None,
        };
        Ok((name, token.end))
    }

    /// `[]`, and where it ends.
    fn brackets(&mut self) -> Result<usize, NotPourable> {
        self.next();
        let close = self.next().filter(|t| self.is_byte(Some(*t), b']')).ok_or(NotPourable::Expression)?;
        Ok(close.end)
    }

    /// `precision)` or `precision, scale)`, and where it ends.
    fn modifier(&mut self) -> Result<(i32, i32, usize), NotPourable> {
        let precision = self.integer()?;
        let mut token = self.next().ok_or(NotPourable::Syntax)?;
        let mut scale = 0;
        if self.is_byte(Some(token), b',') {
            scale = self.integer()?;
            token = self.next().ok_or(NotPourable::Syntax)?;
        }
        if self.is_byte(Some(token), b')') {
            Ok((precision, scale, token.end))
        } else {
            Err(NotPourable::Expression)
        }
    }

    fn integer(&mut self) -> Result<i32, NotPourable> {
        let token = self.next().filter(|t| t.kind == Kind::Integer).ok_or(NotPourable::Expression)?;
        let digits = std::str::from_utf8(self.bytes(token)).ok();
        digits.and_then(|digits| digits.parse().ok()).ok_or(NotPourable::Expression)
    }

    /// A number directly behind the minus sign.
    fn signed(&mut self, minus: Token) -> Result<(Class, usize), NotPourable> {
        let number = self.next().ok_or(NotPourable::Syntax)?;
        match number.kind {
            _ if number.start != minus.end => Err(NotPourable::Expression),
            Kind::Integer => Ok((Class::SignedInteger, number.end)),
            Kind::Decimal => Ok((Class::SignedDecimal, number.end)),
            kind => Err(unlike_literal(kind)),
        }
    }

    /// ON CONFLICT, RETURNING, semicolons.
    fn tail(&mut self) -> Result<(), NotPourable> {
        let token = self.peek();
        if self.is_word(token, b"on") {
            self.on_conflict()?;
            self.out.tail.conflict = true;
        }
        let token = self.peek();
        if self.is_word(token, b"returning") {
            self.returning()?;
            self.out.tail.returning = true;
        }
        let mut ended = false;
        while let Some(token) = self.next() {
            match Some(token) {
                t if self.is_byte(t, b';') => ended = true,
                _ if token.kind == Kind::Unterminated => return Err(NotPourable::Syntax),
                _ if ended => return Err(NotPourable::SecondStatement),
                _ => return Err(NotPourable::Syntax),
            }
        }
        Ok(())
    }

    /// `ON CONFLICT [(names) | ON CONSTRAINT name] DO NOTHING`, or `DO UPDATE SET name = expression, ... [WHERE condition]`.
    fn on_conflict(&mut self) -> Result<(), NotPourable> {
        self.out.shape.push(b' ');
        self.keyword(b"on", NotPourable::OnConflict)?;
        self.keyword(b"conflict", NotPourable::OnConflict)?;
        let target = self.peek();
        if self.is_byte(target, b'(') {
            self.next();
            self.out.shape.push(b'(');
            loop {
                self.name().map_err(|_| NotPourable::OnConflict)?;
                match self.next() {
                    t if self.is_byte(t, b',') => self.out.shape.push(b','),
                    t if self.is_byte(t, b')') => break,
                    _ => return Err(NotPourable::OnConflict),
                }
            }
            self.out.shape.extend_from_slice(b") ");
        } else if self.is_word(target, b"on") {
            self.keyword(b"on", NotPourable::OnConflict)?;
            self.keyword(b"constraint", NotPourable::OnConflict)?;
            self.name().map_err(|_| NotPourable::OnConflict)?;
            self.out.shape.push(b' ');
        }
        self.keyword(b"do", NotPourable::OnConflict)?;
        let action = self.peek();
        if self.is_word(action, b"update") {
            return self.update();
        }
        self.keyword(b"nothing", NotPourable::OnConflict)
    }

    /// `UPDATE SET name = expression, ... [WHERE condition]`: the parser judges what they are.
    fn update(&mut self) -> Result<(), NotPourable> {
        self.keyword(b"update", NotPourable::OnConflict)?;
        self.keyword(b"set", NotPourable::OnConflict)?;
        loop {
            self.name().map_err(|_| NotPourable::OnConflict)?;
            let sign = self.next();
            if sign.is_none_or(|sign| self.bytes(sign) != b"=") {
                return Err(NotPourable::OnConflict);
            }
            self.out.shape.extend_from_slice(b" = ");
            self.expression(true).map_err(|_| NotPourable::OnConflict)?;
            let comma = self.peek();
            if !self.is_byte(comma, b',') {
                break;
            }
            self.next();
            self.out.shape.push(b',');
        }
        let word = self.peek();
        if self.is_word(word, b"where") {
            self.out.shape.push(b' ');
            self.keyword(b"where", NotPourable::OnConflict)?;
            self.expression(true).map_err(|_| NotPourable::OnConflict)?;
        }
        Ok(())
    }

    /// RETURNING with nothing but names, dots, stars, commas and `::text`: the parser judges what they mean.
    fn returning(&mut self) -> Result<(), NotPourable> {
        self.out.shape.push(b' ');
        self.keyword(b"returning", NotPourable::Returning)?;
        let begin = self.out.shape.len();
        loop {
            match self.peek() {
                None => break,
                t if self.is_byte(t, b';') => break,
                Some(t) if matches!(t.kind, Kind::Word | Kind::Quoted) => {
                    self.name().map_err(|_| NotPourable::Returning)?;
                }
                Some(t) if matches!(self.bytes(t), b"." | b"," | b"*" | b"::") => {
                    self.next();
                    self.out.shape.extend_from_slice(self.bytes(t));
                }
                Some(t) if t.kind == Kind::Unterminated => return Err(NotPourable::Syntax),
                Some(_) => return Err(NotPourable::Returning),
            }
            self.out.shape.push(b' ');
        }
        if self.out.shape.len() == begin { Err(NotPourable::Syntax) } else { Ok(()) }
    }

    /// `$1` to `$n`, each once, in any order, and perhaps again in what is computed; further rows are as the first one, with the
    /// numbers that follow.
    fn check_params(&self) -> Result<(), NotPourable> {
        let highest = self.out.params();
        let params = self.out.row(0).iter().filter_map(|item| item.class.param());
        let alike = |row: usize| {
            let before = row * usize::from(highest);
            self.out.row(row).iter().zip(self.out.row(0)).all(|(a, b)| self.follows(before, a, b))
        };
        if highest == 0 {
            let param = |item: &Item| item.class.param().is_some();
            return match () {
                // Each would be a statement of its own.
                () if self.varies => Err(NotPourable::Expression),
                () if self.out.items.iter().any(param) => Err(NotPourable::Params),
                () if self.out.tail.computed
                    && !(1..self.out.rows).all(|row| self.computes_as_first(row)) =>
                {
                    Err(NotPourable::ManyRows)
                }
                () => Ok(()),
            };
        }
        let mut seen = [0u64; ITEMS_MAX.div_ceil(64) + 1];
        let mut count = 0;
        for n in params {
            let word = seen.get_mut(usize::from(n / 64)).ok_or(NotPourable::Params)?;
            if *word >> (n % 64) & 1 == 1 {
                return Err(NotPourable::Params);
            }
            *word |= 1 << (n % 64);
            count += 1;
        }
        // Of those that are computed with, the server says whether there are any in between.
        if self.out.computed_params > 0 {
            return if self.out.rows == 1 { Ok(()) } else { Err(NotPourable::ManyRows) };
        }
        if count != highest {
            return Err(NotPourable::Params);
        }
        if (1..self.out.rows).all(alike) { Ok(()) } else { Err(NotPourable::ManyRows) }
    }

    /// Is what is computed in this row what is computed in the first one?
    fn computes_as_first(&self, row: usize) -> bool {
        self.out.row(row).iter().zip(self.out.row(0)).all(|(item, first)| {
            let (is, was) = (item.class == Class::Computed, first.class == Class::Computed);
            is == was && (!is || item.bytes(self.text) == first.bytes(self.text))
        })
    }

    /// Is `item`, of a row with so many parameters before it, what `first` is in the first row?
    fn follows(&self, before: usize, item: &Item, first: &Item) -> bool {
        let later = |a, b| usize::from(a) == usize::from(b) + before;
        match (item.class, first.class) {
            (Class::Param(a), Class::Param(b)) => later(a, b),
            (Class::CastParam(a, to), Class::CastParam(b, like)) => to == like && later(a, b),
            (a, b) => a == b && item.bytes(self.text) == first.bytes(self.text),
        }
    }
}

/// Why a token can't be an item or follow one.
fn unlike_literal(kind: Kind) -> NotPourable {
    match kind {
        Kind::ContinuedString
        | Kind::EscapeString
        | Kind::UnicodeString
        | Kind::DollarString
        | Kind::BitString
        | Kind::HexString
        | Kind::OtherNumber => NotPourable::Literal,
        Kind::Junk | Kind::Unterminated => NotPourable::Syntax,
        _ => NotPourable::Expression,
    }
}

/// The number of `$n`.
fn param(bytes: &[u8]) -> Result<u16, NotPourable> {
    let digits = &bytes[1..];
    let mut number = 0u16;
    for digit in digits {
        let next = number.checked_mul(10).and_then(|n| n.checked_add(u16::from(digit - b'0')));
        number = next.ok_or(NotPourable::Params)?;
    }
    if number == 0 { Err(NotPourable::Params) } else { Ok(number) }
}
