//! Logs, the audit and counters: what happened, for people and for machines. Nothing decides on them.

pub mod audit;
pub mod events;
pub mod exposition;
pub mod histogram;
pub mod html;
mod log;
pub mod request;
pub mod tally;
pub mod time;

use std::sync::OnceLock;
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, fmt, reload};

use self::log::Lines;
use crate::settings::LogFormat;

/// What the log lets through, once it has begun.
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Its thread.
static LINES: OnceLock<Lines> = OnceLock::new();

/// Starts the structured log on standard error; call it once, before any room logs.
///
/// `level` is `log_level`: error, warn, info, debug or trace; any other word is info. A second call, or one
/// in a process that has a subscriber already, changes nothing.
///
/// # Errors
/// Its thread can't be started.
pub fn init(format: LogFormat, level: &str) -> std::io::Result<()> {
    let lines = Lines::start(std::io::stderr(), format == LogFormat::Json)?;
    let (level, handle) = reload::Layer::new(filter(level));
    // A line that a full disk or a closed pipe did not take is lost. The library would tell standard error so, and panic there.
    let log = fmt::layer().with_writer(lines.clone()).log_internal_errors(false).with_target(false);
    let log_above = tracing_subscriber::registry().with(level);
    let begun = match format {
        LogFormat::Text => {
            let log = log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
            log_above.with(log).try_init()
        }
        LogFormat::Json => log_above.with(log.json().flatten_event(true)).try_init(),
    };
    // Otherwise the embedding process has its own log, which is as good.
    if begun.is_ok() {
        let _ = LEVEL.set(handle);
        let _ = LINES.set(lines);
    }
    Ok(())
}

/// Waits until every line so far was written or lost, at most for `limit`. Blocks.
pub fn flush(limit: Duration) {
    if let Some(lines) = LINES.get() {
        lines.flush(limit);
    }
}

/// From now on the log has this `level`; nothing changes where [`init`] did not start it.
pub fn set_level(level: &str) {
    let Some(handle) = LEVEL.get() else { return };
    let level = filter(level);
    // Every place in the code that logs is asked again then.
    if handle.with_current(|now| *now != level).unwrap_or(false) {
        let _ = handle.reload(level);
    }
}

fn filter(level: &str) -> LevelFilter {
    level.parse().unwrap_or(LevelFilter::INFO)
}

/// What steers a terminal, ends a line, turns it around or is not seen: it is shown by its number, wherever people read names.
pub fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}
