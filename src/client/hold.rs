//! The wait for the end of a unit that may be poured: its client may still be sending, or may send nothing more for a long time.
//!
//! Owns: the time limit of that wait, and the bound on the bytes held meanwhile for all clients together. Never: looks at the bytes; when
//! a hold ends they go on as they were sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::session::Session;
use super::state::Fault;
use super::walk::within_unit;
use crate::coalesce::Lanes;
use crate::limits::READ_BUFFER_BYTES;
use crate::settings::Coalesce;

/// Bytes of all clients' memory (`coalesce.budget_bytes`) that are given back when this goes.
#[derive(Debug)]
pub(super) struct Budget {
    lanes: Arc<Lanes>,
    pub(super) bytes: usize,
}

impl Budget {
    pub(super) fn new(lanes: &Arc<Lanes>) -> Self {
        Self { lanes: Arc::clone(lanes), bytes: 0 }
    }

    /// So many more. False: there are not so many.
    pub(super) fn take(&mut self, bytes: usize, budget: usize) -> bool {
        let within = self.lanes.hold(bytes, budget, self.bytes == 0 && bytes > 0);
        self.bytes += if within { bytes } else { 0 };
        within
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.lanes.let_go(self.bytes);
    }
}

/// Of one client.
#[derive(Debug)]
pub(super) struct Hold {
    held: Budget,
    budget: usize,
    /// `coalesce.flush_timeout`, and the timer: there is none before the client has to be waited for.
    limit: Duration,
    until: Option<Pin<Box<tokio::time::Sleep>>>,
    over: bool,
}

impl Hold {
    pub(super) fn new(lanes: &Arc<Lanes>, coalesce: &Coalesce) -> Self {
        let (budget, limit) = (coalesce.budget_bytes, coalesce.flush_timeout);
        Self { held: Budget::new(lanes), budget, limit, until: None, over: false }
    }

    /// No more is waited for.
    pub(super) const fn is_over(&self) -> bool {
        self.over
    }

    /// What was held is looked at once more: where it is taken, it counts as that.
    pub(super) fn rests(&mut self) {
        self.held = Budget::new(&self.held.lanes);
    }

    /// So many bytes are held by now.
    fn holds(&mut self, bytes: usize) {
        let more = bytes.saturating_sub(self.held.bytes);
        self.over |= more > 0 && !self.held.take(more, self.budget);
    }

    /// The client has sent nothing: is it waited for any longer?
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        let until = self.until.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        until.as_mut().poll(cx).map(|()| self.over = true)
    }
}

impl Session {
    /// Reads until there is something new to know of the pipeline at the front: its end, a message that is none of one, `most` bytes
    /// of it, or that the hold is over. So what is here is not walked again for each byte that a client adds.
    pub(super) async fn read_unit(&mut self, quiet: bool, most: usize, hold: &mut Hold) -> Result<(), Fault> {
        let mut seen = 0;
        loop {
            let here = self.client.bytes().len();
            hold.holds(here);
            if hold.is_over() {
                return Ok(());
            }
            self.read_more(quiet, hold).await?;
            let buf = self.client.bytes();
            // Otherwise it was a signal, or the time.
            if buf.len() == here || buf.len() >= most {
                return Ok(());
            }
            match within_unit(buf, seen) {
                Some(pos) => seen = pos,
                None => return Ok(()),
            }
        }
    }

    /// Waits for more of a unit whose end is not here yet.
    async fn read_more(&mut self, quiet: bool, hold: &mut Hold) -> Result<(), Fault> {
        self.client.want(self.client.bytes().len() + READ_BUFFER_BYTES / 2);
        let (client, me) = (&mut self.client, &self.me);
        let read = std::future::poll_fn(|cx| {
            if me.is_signalled() {
                return Poll::Ready(None);
            }
            match client.poll_hear(cx) {
                Poll::Pending => hold.poll_over(cx).map(|()| None),
                Poll::Ready(read) => Poll::Ready(Some(read)),
            }
        })
        .await;
        match read {
            Some(0) => return Err(Fault::ClientGone),
            Some(n) => self.state.counts.received += n as u64,
            None => {}
        }
        if self.me.is_signalled() { self.obey(quiet) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_clients_hold_together_is_bounded() {
        let lanes = Arc::new(Lanes::new());
        let coalesce = Coalesce { budget_bytes: 100, ..Coalesce::default() };
        let hold = || Hold::new(&lanes, &coalesce);
        let (mut one, mut other) = (hold(), hold());
        one.holds(40);
        one.holds(60);
        other.holds(40);
        assert!(!one.is_over() && !other.is_over());
        other.holds(41);
        assert!(!one.is_over() && other.is_over());
        drop((one, other));
        let mut third = hold();
        third.holds(100);
        assert!(!third.is_over());
    }
}
