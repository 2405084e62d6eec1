//! Many INSERTs, one COPY.
//!
//! Owns: what is known of statements ([`shapes`]) and tables ([`tables`]), the batches that wait and leave ([`lane`]), and the pure
//! parts below them: the catalogue's judgement ([`catalog`]), the plan of a statement ([`plan`]), the bytes of a row ([`rows`]),
//! whose row is whose ([`batch`]), and what is counted and remembered of all that ([`evidence`]). Never: reads a client or answers one; a session offers encoded rows and waits for its [`lane::Ticket`].
//!
//! ```text
//!   session: encoded rows --offer--> lane idle, one row:  leaves at once, as it was sent (the session does it)
//!                                    otherwise:           waits in the batch
//!   the batch leaves when nothing else is under way (and half of the sessions that come and go here are in it, or a
//!   millisecond has passed), behind a quick one when half of them are in it, beside one that waits for a disk when all of them
//!   wait or fly, or at a cap; one round trip: COPY, rows, guard, Sync (or a few rows as one INSERT of many VALUES; or the
//!   INSERTs themselves)
//!     committed        -> each ticket: Inserted
//!     an error         -> rolled back; the guilty row's session runs it singly, the others are flushed again, then singly;
//!                         if the error names no row: as a COPY if it was none, halves, quarters, then singly
//!     connection lost  -> before the Sync was written: singly; after: Unknown
//! ```

pub mod batch;
pub mod catalog;
pub mod evidence;
pub mod lane;
pub mod plan;
pub mod rows;
pub mod shapes;
pub mod tables;

pub use batch::Cut;
pub use shapes::{Lanes, Ready, Source};
