//! How a mutex is locked. Never: holds one.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also behind a panic: that ended one session, and must not end all others that need the same lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
