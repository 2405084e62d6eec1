//! Logs, the audit and counters: what happened, for people and for machines. Nothing decides on them.

pub mod audit;
pub mod events;
pub mod exposition;
pub mod histogram;
pub mod html;
pub mod request;
pub mod time;

use tracing::level_filters::LevelFilter;

use crate::settings::LogFormat;

/// Starts the structured log on standard error; call it once, before any room logs.
///
/// `level` is `log_level`: error, warn, info, debug or trace; any other word is info. A second call, or one
/// in a process that has a subscriber already, changes nothing.
pub fn init(format: LogFormat, level: &str) {
    let level: LevelFilter = level.parse().unwrap_or(LevelFilter::INFO);
    // A line that a full disk or a closed pipe did not take is lost. The library would tell standard error so, and panic there.
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).log_internal_errors(false);
    let log = log.with_max_level(level).with_target(false);
    // Already set: the embedding process has its own log, which is as good.
    let _ = match format {
        LogFormat::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}
