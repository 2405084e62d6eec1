//! The queue of answers against every order of messages.

use super::*;

fn sent(kinds: &[(Kind, Action)]) -> Pipeline {
    let mut p = Pipeline::default();
    for (kind, action) in kinds {
        assert!(!p.push(*kind, *action, *kind == Kind::Parse));
    }
    p
}

#[test]
fn error_strikes_bind_and_execute_but_not_the_next_unit() {
    use Action::Forward as F;
    let mut p = sent(&[
        (Kind::Parse, F),
        (Kind::Bind, F),
        (Kind::Execute, F),
        (Kind::Sync, F),
        (Kind::Bind, F),
        (Kind::Sync, F),
    ]);
    assert_eq!(p.recv(b::ERROR_RESPONSE), Ok((Answer::Forward, Settled::Failed(1))));
    assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
    assert_eq!(p.recv(b::BIND_COMPLETE), Ok((Answer::Forward, Settled::No)));
    assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
    assert!(p.is_quiet());
}

/// As PostgreSQL 18 answers a Query inside a unit, and the statement behind its Sync.
#[test]
fn a_transaction_that_a_sync_ends_by_name_only_is_no_rest() {
    use Action::Forward as F;
    use TransactionStatus::{Idle, InTransaction};
    for between in [None, Some((Kind::Close, b::CLOSE_COMPLETE)), Some((Kind::Parse, b::PARSE_COMPLETE))] {
        let mut p = sent(&[(Kind::Execute, F), (Kind::Query, F)]);
        p.recv(b::COMMAND_COMPLETE).unwrap();
        p.recv(b::COMMAND_COMPLETE).unwrap();
        p.recv_ready(InTransaction).unwrap();
        assert!(p.is_in_unit_of_query());
        if let Some((kind, tag)) = between {
            p.push(kind, F, false);
            p.recv(tag).unwrap();
        }
        p.push(Kind::Sync, F, false);
        p.recv_ready(Idle).unwrap();
        let still = !matches!(between, Some((Kind::Parse, _)));
        assert_eq!((p.is_still_started(), p.is_quiet()), (still, !still));
        p.push(Kind::Query, F, false);
        p.recv(b::ERROR_RESPONSE).unwrap();
        p.recv_ready(Idle).unwrap();
        assert!(p.is_quiet() && !p.is_in_unit_of_query());
    }
}

/// A block that COMMIT ends is over.
#[test]
fn a_block_that_is_ended_is_a_rest() {
    let mut p = Pipeline::default();
    for status in [TransactionStatus::InTransaction, TransactionStatus::Idle] {
        p.push(Kind::Query, Action::Forward, false);
        p.recv(b::COMMAND_COMPLETE).unwrap();
        p.recv_ready(status).unwrap();
    }
    assert!(p.is_quiet());
}

#[test]
fn error_without_a_sync_discards_until_one_comes() {
    let mut p = sent(&[(Kind::Bind, Action::Forward)]);
    assert_eq!(p.recv(b::ERROR_RESPONSE), Ok((Answer::Forward, Settled::Struck(0))));
    assert!(p.is_discarding() && !p.is_quiet());
    p.push(Kind::Sync, Action::Forward, false);
    assert!(!p.is_discarding());
}

#[test]
fn sync_sent_before_copy_in_opens_is_swallowed() {
    use Action::Forward as F;
    let mut p = sent(&[(Kind::Bind, F), (Kind::Execute, F), (Kind::Sync, F)]);
    p.recv(b::BIND_COMPLETE).unwrap();
    p.recv(b::COPY_IN_RESPONSE).unwrap();
    assert!(p.in_copy_in());
    p.push(Kind::Sync, F, false);
    p.push(Kind::CopyEnd, F, false);
    p.push(Kind::Sync, F, false);
    p.recv(b::COMMAND_COMPLETE).unwrap();
    assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
    assert!(p.is_quiet(), "of three Syncs only the one behind CopyDone is answered");
}

#[test]
fn pipelined_copy_keeps_the_sync_behind_copy_done() {
    use Action::Forward as F;
    let mut p = sent(&[(Kind::Bind, F), (Kind::Execute, F), (Kind::CopyEnd, F), (Kind::Sync, F)]);
    p.recv(b::BIND_COMPLETE).unwrap();
    p.recv(b::COPY_IN_RESPONSE).unwrap();
    p.recv(b::COMMAND_COMPLETE).unwrap();
    assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
    assert!(p.is_quiet());
}

#[test]
fn a_unit_sent_while_a_pipelined_copy_still_runs_keeps_its_sync() {
    use Action::Forward as F;
    let mut p = sent(&[(Kind::Bind, F), (Kind::Execute, F), (Kind::CopyEnd, F), (Kind::Sync, F)]);
    p.recv(b::BIND_COMPLETE).unwrap();
    p.recv(b::COPY_IN_RESPONSE).unwrap();
    assert!(!p.in_copy_in(), "its end was sent");
    for kind in [Kind::Bind, Kind::Execute, Kind::Sync] {
        p.push(kind, F, false);
    }
    p.recv(b::COMMAND_COMPLETE).unwrap();
    assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
    p.recv(b::BIND_COMPLETE).unwrap();
    p.recv(b::COMMAND_COMPLETE).unwrap();
    assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
    assert!(p.is_quiet());
}

#[test]
fn each_copy_of_a_query_has_an_end_of_its_own() {
    let mut p = sent(&[(Kind::Query, Action::Forward)]);
    for _ in 0..2 {
        p.recv(b::COPY_IN_RESPONSE).unwrap();
        assert!(p.in_copy_in());
        p.push(Kind::CopyEnd, Action::Forward, false);
        assert!(!p.in_copy_in());
        p.recv(b::COMMAND_COMPLETE).unwrap();
    }
    assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
    assert!(p.is_quiet());
    // Both sent ahead, and a unit behind them while the second one runs.
    let mut p = sent(&[Kind::Query, Kind::CopyEnd, Kind::CopyEnd].map(|kind| (kind, Action::Forward)));
    p.recv(b::COPY_IN_RESPONSE).unwrap();
    p.recv(b::COMMAND_COMPLETE).unwrap();
    p.recv(b::COPY_IN_RESPONSE).unwrap();
    assert!(!p.in_copy_in());
    p.push(Kind::Sync, Action::Forward, false);
    p.recv(b::COMMAND_COMPLETE).unwrap();
    assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
    assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
    assert!(p.is_quiet());
}

#[test]
fn copy_in_swallows_no_sync_behind_a_message_that_ends_it() {
    use Action::Forward as F;
    let mut p = sent(&[(Kind::Execute, F), (Kind::Sync, F), (Kind::Bind, F), (Kind::Sync, F)]);
    p.recv(b::COPY_IN_RESPONSE).unwrap();
    assert_eq!(p.recv(b::ERROR_RESPONSE), Ok((Answer::Forward, Settled::Struck(0))));
    assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
    assert!(p.fence() == Some(Fence::Read) && p.is_empty());
}

/// COPY failed: the Sync behind its Execute was read by it, or is answered yet.
#[test]
fn failed_copy_may_have_left_a_sync_unread() {
    use Action::Forward as F;
    for unread in [false, true] {
        let mut p = sent(&[(Kind::Bind, F), (Kind::Execute, F), (Kind::Sync, F), (Kind::CopyEnd, F)]);
        p.push(Kind::Sync, F, false);
        p.recv(b::BIND_COMPLETE).unwrap();
        p.recv(b::COPY_IN_RESPONSE).unwrap();
        p.recv(b::ERROR_RESPONSE).unwrap();
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
        assert!(p.fence() == Some(Fence::Read) && !p.is_quiet());
        p.push_fence(Fence::Read);
        if unread {
            assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
        }
        assert_eq!(p.recv(b::CLOSE_COMPLETE), Ok((Answer::Skip, Settled::No)));
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Skip));
        assert!(p.is_quiet() && p.recv_ready(TransactionStatus::Idle).is_err());
    }
}

/// The same without a Sync behind its end: what the client sends next is run, or skipped up to a Sync of its own.
#[test]
fn failed_copy_may_have_read_every_sync_that_was_sent() {
    use Action::Forward as F;
    for unread in 0..3 {
        let mut p = sent(&[(Kind::Execute, F)]);
        p.recv(b::COPY_IN_RESPONSE).unwrap();
        for kind in [Kind::Sync, Kind::Sync, Kind::CopyEnd] {
            p.push(kind, F, false);
        }
        assert!(p.is_behind_copy());
        p.recv(b::ERROR_RESPONSE).unwrap();
        assert_eq!(p.fence(), Some(Fence::Skipped));
        p.push_fence(Fence::Skipped);
        let answers: Vec<_> = (0..=unread).map(|_| p.recv_ready(TransactionStatus::Idle).unwrap()).collect();
        assert_eq!(answers.iter().filter(|a| **a == Answer::Forward).count(), unread);
        assert_eq!(p.recv(b::CLOSE_COMPLETE), Ok((Answer::Skip, Settled::No)));
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Skip));
        assert_eq!(p.is_discarding(), unread == 0);
        assert_eq!(p.is_quiet(), unread > 0);
    }
}

/// Ours and the Syncs that COPY had not read: one more before the Close is answered would be taken for the end of what follows.
#[test]
fn a_fence_is_answered_no_oftener_than_syncs_were_sent() {
    use Action::Forward as F;
    let mut p = sent(&[(Kind::Execute, F)]);
    p.recv(b::COPY_IN_RESPONSE).unwrap();
    p.push(Kind::Sync, F, false);
    p.recv(b::ERROR_RESPONSE).unwrap();
    p.push_fence(Fence::Skipped);
    assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Skip));
    assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
    let owed = Some(Kind::Sync);
    assert_eq!(p.recv_ready(TransactionStatus::Idle), Err(Violation { tag: b::READY_FOR_QUERY, owed }));
}

/// What waits for the end of a COPY does not wait for what comes after it.
#[test]
fn a_copy_that_was_answered_holds_nothing_back() {
    use Action::Forward as F;
    let mut p = sent(&[(Kind::Execute, F), (Kind::Sync, F)]);
    p.recv(b::COPY_IN_RESPONSE).unwrap();
    p.push(Kind::CopyEnd, F, false);
    p.push(Kind::Sync, F, false);
    assert!(p.is_behind_copy());
    p.recv(b::COMMAND_COMPLETE).unwrap();
    p.recv_ready(TransactionStatus::Idle).unwrap();
    p.push(Kind::Parse, F, false);
    assert!(!p.is_behind_copy());
}

#[test]
fn a_spare_ready_is_not_taken_for_the_end_of_the_next_query() {
    use Action::Forward as F;
    let mut p = sent(&[(Kind::Execute, F), (Kind::Sync, F), (Kind::CopyEnd, F), (Kind::Sync, F)]);
    p.push(Kind::Query, F, false);
    p.recv(b::COPY_IN_RESPONSE).unwrap();
    p.recv(b::ERROR_RESPONSE).unwrap();
    p.recv_ready(TransactionStatus::Idle).unwrap();
    p.recv_ready(TransactionStatus::Idle).unwrap();
    assert_eq!(p.len(), 1, "the Query is still owed its answer");
    p.recv(b::COMMAND_COMPLETE).unwrap();
    p.recv_ready(TransactionStatus::Idle).unwrap();
    assert!(p.is_quiet());
}

#[test]
fn what_a_folded_query_says_too_early_is_kept() {
    let mut p = sent(&[(Kind::Describe, Action::FoldLate), (Kind::Execute, Action::Fold)]);
    p.push(Kind::Sync, Action::Forward, false);
    assert!(p.keeps_rows());
    assert_eq!(p.recv(b::ROW_DESCRIPTION), Ok((Answer::Keep, Settled::No)));
    assert_eq!(p.recv(b::DATA_ROW), Ok((Answer::Forward, Settled::No)));
    assert_eq!(p.recv(b::COMMAND_COMPLETE), Ok((Answer::Keep, Settled::No)));
    assert_eq!(p.recv(b::ERROR_RESPONSE), Ok((Answer::Forward, Settled::No)));
    assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
}

#[test]
fn refusal_struck_by_an_earlier_error_is_counted() {
    let mut p = sent(&[
        (Kind::Bind, Action::Forward),
        (Kind::Parse, Action::Refuse),
        (Kind::Sync, Action::Forward),
        (Kind::Parse, Action::Refuse),
        (Kind::Sync, Action::Forward),
    ]);
    assert_eq!(p.recv(b::ERROR_RESPONSE), Ok((Answer::Forward, Settled::Struck(1))));
    assert_eq!(p.take_struck_refusals(), 1);
    p.recv_ready(TransactionStatus::Idle).unwrap();
    assert_eq!(p.recv(b::ERROR_RESPONSE), Ok((Answer::Refuse, Settled::Failed(1))));
    assert_eq!(p.take_struck_refusals(), 0);
}

#[test]
fn made_up_answer_waits_for_its_turn() {
    let mut p = sent(&[(Kind::Bind, Action::Forward)]);
    assert!(!p.push(Kind::Parse, Action::Fake, true));
    assert_eq!(p.pop_fake(), None);
    p.recv(b::BIND_COMPLETE).unwrap();
    assert_eq!(p.pop_fake().map(|o| o.kind), Some(Kind::Parse));
    assert!(p.push(Kind::Parse, Action::Fake, true), "due at once when nothing is owed");
}

#[test]
fn answer_without_a_question_is_a_violation() {
    let mut p = Pipeline::default();
    assert!(p.recv(b::COMMAND_COMPLETE).is_err());
    assert!(p.recv_ready(TransactionStatus::Idle).is_err());
    assert!(p.recv(b::ERROR_RESPONSE).is_err());
}

proptest::proptest! {
    /// Whatever is sent and answered, the short way round says what the queue says.
    #[test]
    fn an_end_that_is_owed_is_seen(steps in proptest::collection::vec((0usize..14, 0usize..4), 0..60)) {
        const KINDS: [Kind; 8] = [
            Kind::Parse, Kind::Bind, Kind::Describe, Kind::Execute, Kind::Close, Kind::Sync, Kind::Query, Kind::CopyEnd,
        ];
        const ACTIONS: [Action; 4] = [Action::Forward, Action::Fake, Action::Skip, Action::Own];
        const TAGS: [u8; 5] =
            [b::COMMAND_COMPLETE, b::ERROR_RESPONSE, b::COPY_IN_RESPONSE, b::PARSE_COMPLETE, b::BIND_COMPLETE];
        let mut p = Pipeline::default();
        for (what, action) in steps {
            match what.checked_sub(KINDS.len()) {
                None => drop(p.push(KINDS[what], ACTIONS[action], false)),
                Some(5) => drop(p.recv_ready(TransactionStatus::Idle)),
                Some(tag) => drop(p.recv(TAGS[tag])),
            }
            p.pop_fake();
            proptest::prop_assert_eq!(p.owes_end_of_unit(), p.owed.iter().any(|o| o.kind.ends_unit()));
        }
    }
}
