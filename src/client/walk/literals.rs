//! INSERTs of literals: from a text, as it came in a Query or in a Parse without parameters, to rows.
//!
//! Owns: finding a text's plan and rows, by comparing it with recent texts or by taking it apart. Never: takes literals that the server
//! read at Parse and that might mean something else now.

use std::sync::Arc;

use super::{OwnTime, Place, Scratch, put_inserted};
use crate::client::session::Session;
use crate::coalesce::plan::InsertPlan;
use crate::coalesce::rows::{are_lasting, encode_literals, put_literals_bound};
use crate::coalesce::shapes::{Closed, Lately};
use crate::coalesce::{Ready, Source};
use crate::sql::insert::{Item, NotPourable, lift, quick_reject};
use crate::wire::backend as b;
use crate::wire::copy::CopyFormat;
use crate::wire::frame;

/// How a text of literals came.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sent<'a> {
    /// In a Query: it is read as it is run.
    Query { in_block: bool },
    /// In a Parse, and bound with these formats for its results; `None`: a statement that answers rows is not taken.
    Parsed(Option<&'a [u8]>),
}

impl<'a> Sent<'a> {
    /// The formats in which rows are answered; `None`: the statement must not answer rows.
    fn result_formats(self) -> Option<&'a [u8]> {
        match self {
            Self::Query { in_block: true } => None,
            Self::Query { in_block: false } => Some(&[]),
            Self::Parsed(formats) => formats,
        }
    }
}

/// Rows of literals that were appended.
pub(super) struct LiteralRows {
    pub(super) ready: Arc<Ready>,
    pub(super) own_time: OwnTime,
    pub(super) rows: usize,
}

impl Session {
    /// Appends the rows of an INSERT of literals, and its answers up to CommandComplete.
    pub(in crate::client) fn take_literals(
        &self,
        text: &[u8],
        in_block: bool,
        scratch: &mut Scratch,
    ) -> Option<(Arc<Ready>, OwnTime)> {
        if !self.state.rules.passes_all_queries() || quick_reject(text) || !self.state.passes(text) {
            return None;
        }
        let taken = self.literal_rows(text, Sent::Query { in_block }, scratch)?;
        if taken.ready.together().is_none() {
            put_inserted(&mut scratch.answers, taken.rows);
        }
        Some((taken.ready, taken.own_time))
    }

    /// The plan of a text of literals, as far as its first row says.
    pub(super) fn ready_for_literals(&self, text: &[u8], scratch: &mut Scratch) -> Option<Arc<Ready>> {
        let Scratch { recent, lifted, .. } = scratch;
        match recent.find(&self.pool, &self.state.vars.want, text) {
            Some(Lately::Ready(ready, _)) => return Some(ready),
            Some(Lately::Refused | Lately::Closed(_)) => return None,
            None => {}
        }
        lift(text, lifted).ok()?;
        let source = Source::Literals { shape: &lifted.shape, lifted, text, row: 0 };
        self.cx.lanes.find_and_keep(recent, &self.pool, &self.state.vars.want, source)
    }

    /// Appends the rows of an INSERT of literals.
    pub(super) fn literal_rows(
        &self,
        text: &[u8],
        sent: Sent<'_>,
        scratch: &mut Scratch,
    ) -> Option<LiteralRows> {
        // The result of `lift` and `find`, if this text came by recently.
        let lately = scratch.recent.find(&self.pool, &self.state.vars.want, text);
        if let Some(Lately::Refused) = lately {
            return None;
        }
        if let Some(Lately::Closed(shape)) = lately {
            scratch.closed = Closed::new(text, shape);
            return None;
        }
        if let Some(Lately::Ready(ready, items)) = lately {
            if !self.may_be_read(sent, &ready.plan, text, items) {
                return None;
            }
            let info = encode_literals(&ready.plan, text, items, &mut scratch.rows).ok()?;
            let pushed = scratch.push_rows(ready.lane(CopyFormat::Text)?, 1);
            let own_time = OwnTime::of(&ready.plan, info);
            return pushed.then_some(LiteralRows { ready, own_time, rows: 1 });
        }
        let lifted = lift(text, &mut scratch.lifted).map(|()| &scratch.lifted);
        let why = match lifted.map(|lifted| (lifted.tail.plain(), lifted.tail.allows(lifted.rows))) {
            Ok((Ok(()), _)) => return self.encode_rows(text, sent, scratch),
            Ok((Err(_), Ok(()))) if sent.result_formats().is_some() => {
                return self.bind_rows(text, sent, scratch);
            }
            Ok((Err(why), Ok(())) | (_, Err(why))) | Err(why) => why,
        };
        self.cx.lanes.note_refused(&self.pool, text, why);
        None
    }

    /// Do these literals mean now what they meant when the server read them, or would have?
    fn may_be_read(&self, sent: Sent<'_>, plan: &InsertPlan, text: &[u8], items: &[Item]) -> bool {
        let may = matches!(sent, Sent::Query { .. }) || are_lasting(plan, text, items);
        if !may {
            self.cx.lanes.note_refused(&self.pool, text, NotPourable::ReadAtParse);
        }
        may
    }

    /// The rows of a text of literals that are not a COPY's.
    fn bind_rows(&self, text: &[u8], sent: Sent<'_>, scratch: &mut Scratch) -> Option<LiteralRows> {
        let Scratch { lifted, rows, answers, places, .. } = scratch;
        let source = Source::Literals { shape: &lifted.shape, lifted, text, row: 0 };
        let ready = self.cx.lanes.find(&self.pool, &self.state.vars.want, source)?;
        let together = ready.together()?;
        let read = |row| self.may_be_read(sent, &ready.plan, text, lifted.row(row));
        if !(0..lifted.rows).all(read) {
            return None;
        }
        let name = &together.statement.server_name;
        let formats = sent.result_formats()?;
        let info = put_literals_bound(&ready.plan, name, text, &lifted.items, formats, rows).ok()?;
        if let Sent::Query { .. } = sent {
            let notices = answers.len();
            if let Some(described) = &together.row_description {
                frame::put(answers, b::ROW_DESCRIPTION, |out| out.extend_from_slice(described));
            }
            places.push(Place { at: answers.len(), notices, one_row: false });
        }
        let rows = lifted.rows;
        let pushed = scratch.push_rows(&together.lane, rows);
        let own_time = OwnTime::of(&ready.plan, info);
        pushed.then_some(LiteralRows { ready, own_time, rows })
    }

    /// All rows of a text of literals, when one lane takes them.
    fn encode_rows(&self, text: &[u8], sent: Sent<'_>, scratch: &mut Scratch) -> Option<LiteralRows> {
        let Scratch { recent, lifted, shape, rows, .. } = scratch;
        let (mut ready, mut own_time) = (None::<Arc<Ready>>, OwnTime::No);
        for row in 0..lifted.rows {
            if !lifted.is_like_before(row) {
                let shape: &[u8] = if row == 0 {
                    &lifted.shape
                } else {
                    shape.clear();
                    lifted.put_shape(text, row, shape);
                    shape
                };
                let (pool, vars) = (&self.pool, &self.state.vars.want);
                let source = Source::Literals { shape, lifted, text, row };
                let found = self.cx.lanes.find_and_keep(recent, pool, vars, source)?;
                let before = ready.replace(found);
                let lane = |ready: &Arc<Ready>| ready.lane(CopyFormat::Text).map(Arc::as_ptr);
                if before.is_some_and(|before| lane(&before) != ready.as_ref().and_then(lane)) {
                    return None;
                }
            }
            let plan = &ready.as_ref()?.plan;
            if !self.may_be_read(sent, plan, text, lifted.row(row)) {
                return None;
            }
            let info = encode_literals(plan, text, lifted.row(row), rows).ok()?;
            own_time = own_time.max(OwnTime::of(plan, info));
        }
        let (ready, rows) = (ready?, lifted.rows);
        let pushed = scratch.push_rows(ready.lane(CopyFormat::Text)?, rows);
        pushed.then_some(LiteralRows { ready, own_time, rows })
    }
}
