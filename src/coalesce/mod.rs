//! Many INSERTs, one COPY.
//!
//! Owns: what is known of statements ([`shapes`]) and tables ([`tables`]), the batches that wait and leave ([`lane`]), their counters and
//! history ([`evidence`]), and the pure parts below: the catalogue's judgement ([`catalog`]), the plan of a statement ([`plan`]), the
//! bytes of a row ([`rows`]), which row belongs to which client ([`batch`]). Never: reads a client or answers one; a session offers
//! encoded rows and waits for its [`lane::Ticket`].
//!
//! ```text
//!   session: encoded rows --offer--> lane idle, one row:  leaves at once, as it was sent (the session does it)
//!                                    otherwise:           waits in the batch
//!   the batch leaves
//!     - if no flush is under way: when half of the lane's recent sessions are in it, or after a millisecond
//!     - if a quick flush is under way: behind it, when half of these sessions are in it
//!     - if a flush waits for a disk: beside it, when all of these sessions are in one of the two
//!     - at the latest at a cap
//!   in one round trip: COPY, rows, guard, Sync (or a few rows as one INSERT of many VALUES; or the INSERTs themselves)
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
