//! What a session may be and do on connections that are not its own.

#[path = "../cancel.rs"]
mod cancel;
#[path = "../conversations.rs"]
mod conversations;
#[path = "../drivers.rs"]
mod drivers;
#[path = "../notifications.rs"]
mod notifications;
#[path = "../pools.rs"]
mod pools;
#[path = "../prepared.rs"]
mod prepared;
#[path = "../replication.rs"]
mod replication;
#[path = "../session_state.rs"]
mod session_state;
#[path = "../sessions.rs"]
mod sessions;
#[path = "../support/mod.rs"]
mod support;
