//! What operators see and do: configuration, console, logs, metrics, outages, several servers and several proxies.

#[path = "../check.rs"]
mod check;
#[path = "../console.rs"]
mod console;
#[path = "../console_live.rs"]
mod console_live;
#[path = "../errors.rs"]
mod errors;
#[path = "../evidence.rs"]
mod evidence;
#[path = "../hosts.rs"]
mod hosts;
#[path = "../http.rs"]
mod http;
#[path = "../logs.rs"]
mod logs;
#[path = "../outages.rs"]
mod outages;
#[path = "../peers.rs"]
mod peers;
#[path = "../quickstart.rs"]
mod quickstart;
#[path = "../support/mod.rs"]
mod support;
