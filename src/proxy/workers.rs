//! Workers: one thread and one runtime each. A client lives on one worker from accept to end. Never: knows what it
//! runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;

use super::{Proxy, ServeError};
use crate::limits::FOREVER;
use crate::net::busy::before_sleep;
use crate::pool::registry;
use crate::settings::{Database, General, Settings};
use crate::telemetry::events;

/// One worker, seen from outside.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) handle: Handle,
    clients: Arc<AtomicUsize>,
}

/// The worker that lets clients in: those that stay there need not be handed to another thread.
pub(super) const DOOR: usize = 0;

/// Threads of one runtime for what blocks: files, names of hosts, keys that take long to derive.
const BLOCKING_THREADS_MAX: usize = 128;

/// Their name.
const BLOCKING_THREAD: &str = "pgsluice-blocks";

/// A runtime, and a first thread for what blocks, which stays: where the system refuses one more, work waits for one that is
/// there, and a runtime without any would panic.
pub(super) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    // A runtime that is refused its first one panics as well.
    let _ = std::thread::Builder::new().spawn(|| ())?.join();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .on_thread_park(before_sleep)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_keep_alive(FOREVER)
        .thread_name(BLOCKING_THREAD)
        .enable_all()
        .build()?;
    runtime.spawn_blocking(|| ());
    Ok(runtime)
}

/// As many open files as the system lets us have: each client is one. How many that is.
pub(super) fn raise_file_limit() -> usize {
    let Ok((soft, hard)) = rlimit::Resource::NOFILE.get() else { return usize::MAX };
    let raised = soft < hard && rlimit::Resource::NOFILE.set(hard, hard).is_ok();
    usize::try_from(if raised { hard } else { soft }).unwrap_or(usize::MAX)
}

/// Says at the start that `files` may not do: later it would be clients that can't come in, or servers not reached.
pub(super) fn warn_of_few_files(files: usize, settings: &Settings) {
    let needed = files_needed(settings);
    if files < needed {
        events::few_files(files, settings.general.max_client_conn, needed);
    }
}

/// Open files beside connections: listeners, logs, runtimes.
const OTHER_FILES: usize = 32;

/// Open files when all clients are here and one pool of each database is full. There may be more of them: their users
/// are not known yet.
fn files_needed(settings: &Settings) -> usize {
    let general = &settings.general;
    let pool = |database: &Arc<Database>| {
        let size = database.pool_size.unwrap_or(general.default_pool_size);
        let reserve = database.reserve_pool_size.unwrap_or(general.reserve_pool_size);
        let most = database.max_db_connections.unwrap_or(general.max_db_connections);
        // 0 is no limit.
        let size = if size == 0 { general.max_client_conn } else { size.saturating_add(reserve) };
        if most == 0 { size } else { size.min(most) }
    };
    let servers = settings.databases.values().chain(&settings.fallback).map(pool);
    let all = servers.fold(general.max_client_conn, usize::saturating_add);
    all.saturating_add(OTHER_FILES)
}

/// Their threads end with the process.
pub(super) fn start_workers(general: &General) -> Result<Vec<Worker>, ServeError> {
    let count = match general.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2),
        n => n,
    };
    let mut workers = Vec::new();
    for id in 0..count {
        let runtime = runtime().map_err(|e| ServeError(format!("cannot start a runtime: {e}")))?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new()
            .name(format!("pgsluice-{id}"))
            .spawn(move || {
                registry::set_current_worker(id);
                runtime.block_on(std::future::pending::<()>());
            })
            .map_err(|e| ServeError(format!("cannot start worker {id}: {e}")))?;
        workers.push(Worker { handle, clients: Arc::new(AtomicUsize::new(0)) });
    }
    Ok(workers)
}

impl Proxy {
    /// A new connection goes to the worker with the fewest. `serve` is told whether that is another than [`DOOR`].
    pub(super) fn give_to_worker<F: Future<Output = ()> + Send + 'static>(
        &self,
        serve: impl FnOnce(Counted, bool) -> F,
    ) {
        let clients = |(_, worker): &(usize, &Worker)| worker.clients.load(Ordering::Relaxed);
        if let Some((id, worker)) = self.workers.iter().enumerate().min_by_key(clients) {
            worker.handle.spawn(serve(Counted::new(&worker.clients), id != DOOR));
        }
    }
}

/// Counts while it lives.
#[derive(Debug)]
pub(super) struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
