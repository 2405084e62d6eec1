//! The grammar of `options` in a StartupMessage: the words of a command line that a session may bring.
//!
//! Owns: both ways, from the client's words to settings and from settings to words. Never: what a setting means.

use std::borrow::Cow;

use super::name_for_message;
use crate::error::{Error, Kind};

/// The settings that `options` asks for, in order: `-c name=value`, `--name=value` and the short
/// switches that PostgreSQL allows a session to set.
///
/// Words end at white space; a backslash takes the next character as it is.
///
/// Errors: a switch that is none of these or lacks its value, with PostgreSQL's words and SQLSTATE.
pub fn parse_options(options: &str) -> Result<Vec<(String, String)>, Error> {
    let words = split_options(options);
    let mut words = words.iter().map(String::as_str);
    let mut settings = Vec::new();
    while let Some(word) = words.next() {
        if word == "--" {
            break;
        }
        match word.strip_prefix('-') {
            None | Some("") => return Err(invalid_option(word)),
            Some(switches) => read_switches(switches, &mut words, &mut settings)?,
        }
    }
    // Behind `--`, or without a dash, nothing has a meaning for a session.
    words.next().map_or(Ok(settings), |word| Err(invalid_option(word)))
}

fn invalid_option(word: &str) -> Error {
    let what = format!("invalid command-line argument for server process: {}", name_for_message(word));
    Error::new(Kind::InvalidOptions, what).with_hint("Use -c name=value or --name=value in options.")
}

/// What the packet itself means something by, and no setting.
fn is_the_packets_own(name: &str) -> bool {
    matches!(name, "user" | "database" | "options" | "replication") || name.starts_with("_pq_.")
}

/// A session's settings as parameters of its StartupMessage, in order. One with a name that the packet means something
/// else by came in the client's `options`, and is a setting there only: as a parameter it would make the client somebody
/// else, or put it somewhere else, behind its authentication.
pub fn setting_parameters<'a>(
    settings: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<(&'a str, Cow<'a, str>)> {
    let (own, plain): (Vec<_>, Vec<_>) = settings.into_iter().partition(|(name, _)| is_the_packets_own(name));
    let mut parameters: Vec<_> = plain.into_iter().map(|(name, value)| (name, Cow::from(value))).collect();
    if !own.is_empty() {
        let words = own.iter().map(|(name, value)| format!("-c {}={}", one_word(name), one_word(value)));
        parameters.push(("options", words.collect::<Vec<_>>().join(" ").into()));
    }
    parameters
}

/// With a backslash before each white space and backslash; [`split_options`] takes them away.
fn one_word(text: &str) -> String {
    let mut word = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\\' || is_space(c) {
            word.push('\\');
        }
        word.push(c);
    }
    word
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c')
}

/// Words of `options`.
fn split_options(options: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = options.chars();
    while let Some(c) = chars.next() {
        if is_space(c) {
            words.extend(word.take());
            continue;
        }
        let word = word.get_or_insert_default();
        match c {
            // A backslash at the very end stands for nothing, as in PostgreSQL.
            '\\' => word.extend(chars.next()),
            _ => word.push(c),
        }
    }
    words.extend(word);
    words
}

/// One word after its dash: switches without a value may be followed by more switches.
fn read_switches<'a>(
    switches: &'a str,
    words: &mut impl Iterator<Item = &'a str>,
    settings: &mut Vec<(String, String)>,
) -> Result<(), Error> {
    let mut rest = switches.chars();
    while let Some(switch) = rest.next() {
        if let Some((name, value)) = flag(switch) {
            settings.push((name.to_owned(), value.to_owned()));
            continue;
        }
        if IGNORED_FLAGS.contains(&switch) {
            continue;
        }
        if !WITH_VALUE.contains(&switch) {
            return Err(invalid_option(&format!("-{switch}")));
        }
        let value = match rest.as_str() {
            "" => words.next().ok_or_else(|| invalid_option(&format!("-{switch}")))?,
            value => value,
        };
        return put_with_value(switch, value, settings);
    }
    Ok(())
}

/// Switches with a value.
const WITH_VALUE: [char; 16] =
    ['c', '-', 'S', 'W', 'f', 't', 'd', 'B', 'h', 'k', 'N', 'p', 'C', 'D', 'r', 'v'];

/// Switches without one that PostgreSQL reads and passes over in a session: they are for its start.
const IGNORED_FLAGS: [char; 4] = ['b', 'E', 'j', 'T'];

/// Switches without a value that stand for a setting. Some a session may not set, which the server says.
fn flag(switch: char) -> Option<(&'static str, &'static str)> {
    Some(match switch {
        'e' => ("datestyle", "euro"),
        'F' => ("fsync", "false"),
        'i' => ("listen_addresses", "*"),
        'l' => ("ssl", "true"),
        'O' => ("allow_system_table_mods", "true"),
        'P' => ("ignore_system_indexes", "true"),
        's' => ("log_statement_stats", "true"),
        _ => return None,
    })
}

fn put_with_value(switch: char, value: &str, settings: &mut Vec<(String, String)>) -> Result<(), Error> {
    let mut put = |name: &str, value: &str| settings.push((name.to_owned(), value.to_owned()));
    match (switch, value) {
        ('S', kilobytes) => put("work_mem", kilobytes),
        ('W', seconds) => put("post_auth_delay", seconds),
        ('B', buffers) => put("shared_buffers", buffers),
        ('h', addresses) => put("listen_addresses", addresses),
        ('k', directories) => put("unix_socket_directories", directories),
        ('N', connections) => put("max_connections", connections),
        ('p', port) => put("port", port),
        ('d', level) => debug_settings(level).into_iter().for_each(|(name, value)| put(name, &value)),
        ('t', "pa" | "parser") => put("log_parser_stats", "true"),
        ('t', "pl" | "planner") => put("log_planner_stats", "true"),
        ('t', "e" | "ex" | "executor") => put("log_executor_stats", "true"),
        ('f', method) => put(planner_method(method)?, "false"),
        ('c' | '-', setting) => settings.push(name_and_value(switch, setting)?),
        // For the server's start.
        ('C' | 'D' | 'r' | 'v', _) => {}
        _ => return Err(invalid_option(&format!("-{switch} {value}"))),
    }
    Ok(())
}

/// What `-d` sets: more with each level. Like C's `atoi` it takes what is no number for 0.
fn debug_settings(level: &str) -> Vec<(&'static str, String)> {
    let digits = level.trim_start_matches(is_space);
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let level: u32 = digits[..end].parse().unwrap_or(0);
    let messages = if level > 0 { format!("debug{level}") } else { "notice".to_owned() };
    let more = [
        (2, "log_statement", "all"),
        (3, "debug_print_parse", "true"),
        (4, "debug_print_plan", "true"),
        (5, "debug_print_rewritten", "true"),
    ];
    let more = more.into_iter().filter(|(from, ..)| level >= *from);
    let more = more.map(|(_, name, value)| (name, value.to_owned()));
    [("log_min_messages", messages)].into_iter().chain(more).collect()
}

fn planner_method(method: &str) -> Result<&'static str, Error> {
    Ok(match method {
        "s" => "enable_seqscan",
        "i" => "enable_indexscan",
        "o" => "enable_indexonlyscan",
        "b" => "enable_bitmapscan",
        "t" => "enable_tidscan",
        "n" => "enable_nestloop",
        "m" => "enable_mergejoin",
        "h" => "enable_hashjoin",
        _ => return Err(invalid_option(&format!("-f {method}"))),
    })
}

/// `name=value`; a dash in the name stands for an underscore.
fn name_and_value(switch: char, setting: &str) -> Result<(String, String), Error> {
    let Some((name, value)) = setting.split_once('=') else {
        let word = name_for_message(setting);
        let what = if switch == 'c' {
            format!("-c {word} requires a value")
        } else {
            format!("--{word} requires a value")
        };
        return Err(Error::new(Kind::InvalidOptions, what));
    };
    if name.is_empty() {
        return Err(Error::new(Kind::UndefinedParameter, "unrecognized configuration parameter \"\"")
            .with_hint("Use -c name=value or --name=value in options."));
    }
    Ok((name.replace('-', "_"), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::startup::{Replication, Startup, StartupPacket, put_startup};
    use proptest::prelude::*;

    #[test]
    fn options_hostile_and_good() {
        let settings = |text: &str| -> Result<Vec<(String, String)>, String> {
            parse_options(text).map_err(|e| format!("{} {}", e.sqlstate(), e.message()))
        };
        let invalid =
            |word: &str| Err(format!("42601 invalid command-line argument for server process: {word}"));
        let unnamed = || Err("42704 unrecognized configuration parameter \"\"".to_owned());
        let several = |all: &[(&str, &str)]| {
            Ok(all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
        };
        let one = |name: &str, value: &str| several(&[(name, value)]);
        for (text, want) in [
            ("", Ok(vec![])),
            ("  \t\n ", Ok(vec![])),
            ("--", Ok(vec![])),
            ("-- -c a=b", invalid("-c")),
            ("-", invalid("-")),
            ("---", Err("42601 --- requires a value".to_owned())),
            ("---=x", one("_", "x")),
            ("x", invalid("x")),
            ("\\", invalid("")),
            ("-c", invalid("-c")),
            ("-c ", invalid("-c")),
            ("-c=", unnamed()),
            ("-c =x", unnamed()),
            ("--=x", unnamed()),
            ("-c a", Err("42601 -c a requires a value".to_owned())),
            ("--a", Err("42601 --a requires a value".to_owned())),
            ("-c a=", one("a", "")),
            ("-ca=b", one("a", "b")),
            ("-c a=b=c", one("a", "b=c")),
            ("-c my.var=x\\ y\\\\z\\", one("my.var", "x y\\z")),
            ("--search-path=a,b", one("search_path", "a,b")),
            ("-c\\ a=b", one(" a", "b")),
            ("-S 64", one("work_mem", "64")),
            ("-fs", one("enable_seqscan", "false")),
            ("-f q", invalid("-f q")),
            ("-tpl", one("log_planner_stats", "true")),
            ("-sca=b", several(&[("log_statement_stats", "true"), ("a", "b")])),
            ("-D /x -C x -r y -v 3 -bEjT", Ok(vec![])),
            ("-D", invalid("-D")),
            ("-B 16", one("shared_buffers", "16")),
            ("-Fli", several(&[("fsync", "false"), ("ssl", "true"), ("listen_addresses", "*")])),
            ("-d x", one("log_min_messages", "notice")),
            ("-d1", one("log_min_messages", "debug1")),
            (
                "-d 3x",
                several(&[
                    ("log_min_messages", "debug3"),
                    ("log_statement", "all"),
                    ("debug_print_parse", "true"),
                ]),
            ),
            ("-n", invalid("-n")),
            ("-\u{e9}", invalid("-\u{e9}")),
        ] {
            assert_eq!(settings(text), want, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_options_end(text in "[-c=a\\\\ \t.fsS]{0,40}") {
            if let Ok(settings) = parse_options(&text) {
                prop_assert!(settings.iter().all(|(name, _)| !name.is_empty()));
            }
        }

        #[test]
        fn no_setting_is_taken_for_what_the_packet_is_about(
            settings in proptest::collection::vec((
                prop_oneof![
                    "[a-z]{1,6}",
                    Just("user".to_owned()), Just("database".to_owned()), Just("options".to_owned()),
                    Just("replication".to_owned()), "_pq_\\.[a-z \\\\]{0,4}",
                ],
                "[^\0]{0,12}",
            ), 0..6),
        ) {
            let own = [("user", Cow::from("ann")), ("database", "app".into())];
            let sent = setting_parameters(settings.iter().map(|(name, value)| (&**name, &**value)));
            let all: Vec<_> = own.into_iter().chain(sent).collect();
            let mut bytes = Vec::new();
            put_startup(&mut bytes, 0, all.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
            let Ok(StartupPacket::Startup(message)) = StartupPacket::decode(&bytes[4..]) else { panic!() };
            let startup = Startup::read(&message).unwrap();
            prop_assert_eq!((&*startup.user, &*startup.database, startup.replication), ("ann", "app", Replication::None));
            prop_assert!(startup.negotiate.is_none());
            let (mut read, mut meant) = (startup.params, settings);
            read.sort();
            meant.sort();
            prop_assert_eq!(read, meant);
        }

        #[test]
        fn escaped_values_come_back(values in proptest::collection::vec("[^\0]{0,12}", 0..5)) {
            let escape = |value: &String| value.chars().flat_map(|c| {
                let special = c == '\\' || c.is_ascii_whitespace() || c == '\x0b';
                special.then_some('\\').into_iter().chain([c])
            }).collect::<String>();
            let text: Vec<_> = values.iter().map(|v| format!("-c x={}", escape(v))).collect();
            let settings = parse_options(&text.join(" ")).unwrap();
            let back: Vec<_> = settings.into_iter().map(|(_, value)| value).collect();
            prop_assert_eq!(back, values);
        }
    }
}
