//! Packets whole, cut, lying and hostile.

use super::*;
use proptest::prelude::*;

fn packet(minor: u16, params: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    put_startup(&mut out, minor, params.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())));
    out
}

fn read(minor: u16, params: &[(&str, &str)]) -> Result<Startup, Error> {
    let bytes = packet(minor, params);
    match StartupPacket::whole(&bytes).expect("well formed").expect("whole").0 {
        StartupPacket::Startup(message) => Startup::read(&message),
        other => panic!("not a StartupMessage: {other:?}"),
    }
}

fn told(result: Result<Startup, Error>) -> (String, String) {
    let error = result.expect_err("refused");
    (error.sqlstate().to_owned(), error.message().to_owned())
}

#[test]
fn who_where_and_with_which_settings() {
    let startup = read(
        2,
        &[
            ("user", "ann"),
            ("search_path", "b"),
            ("options", "-c search_path=a --work-mem=1MB"),
            ("application_name", "t\u{e4}st\n"),
            ("replication", "off"),
        ],
    )
    .unwrap();
    assert_eq!((startup.user.as_str(), startup.database.as_str(), startup.minor), ("ann", "ann", 2));
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
    };
    let application_name = "t\\xc3\\xa4st\\x0a";
    assert_eq!(
        startup.params,
        pairs(&[
            ("search_path", "a"),
            ("work_mem", "1MB"),
            ("search_path", "b"),
            ("application_name", application_name)
        ])
    );
    assert_eq!(startup.param("SEARCH_PATH"), Some("b"));
    assert_eq!(startup.negotiate, None);
}

#[test]
fn names_that_are_missing_empty_or_given_twice() {
    let nobody = "no PostgreSQL user name specified in startup packet";
    for params in [&[][..], &[("user", "")], &[("database", "app")]] {
        assert_eq!(told(read(0, params)), ("28000".into(), nobody.into()), "{params:?}");
    }
    let startup = read(0, &[("user", "ann"), ("database", ""), ("user", "bob")]).unwrap();
    assert_eq!((startup.user.as_str(), startup.database.as_str()), ("bob", "bob"));
}

#[test]
fn names_end_where_the_server_stops_reading_them() {
    let (most, odd) = ("u".repeat(63), format!("{}é", "d".repeat(62)));
    for (user, database, read_as) in [
        (most.clone(), "app".into(), (most.clone(), "app".to_owned())),
        (format!("{most}u"), odd, (most.clone(), "d".repeat(62))),
        (format!("{most}{most}"), String::new(), (most.clone(), most.clone())),
    ] {
        let startup = read(0, &[("user", &user), ("database", &database)]).unwrap();
        assert_eq!((startup.user, startup.database), read_as);
    }
}

#[test]
fn versions_are_negotiated_once_and_say_which_options_are_unknown() {
    for (asked, options, minor, negotiated) in [
        (0, &[][..], 0, false),
        (1, &[], 1, false),
        (2, &[], 2, false),
        (3, &[], 2, true),
        (9999, &["_pq_.a", "_pq_.b"], 2, true),
        (0, &["_pq_.a"], 0, true),
    ] {
        let mut params = vec![("user", "ann")];
        params.extend(options.iter().map(|name| (*name, "1")));
        let startup = read(asked, &params).unwrap();
        assert_eq!(startup.minor, minor, "3.{asked}");
        assert!(startup.params.is_empty());
        let Some(said) = startup.negotiate else {
            assert!(!negotiated, "3.{asked} {options:?}");
            continue;
        };
        assert!(negotiated, "3.{asked} {options:?}");
        assert_eq!((said.minor, said.unrecognized.as_slice()), (minor, options.map_owned().as_slice()));
        let mut message = Vec::new();
        put_negotiate(&mut message, &said);
        assert_eq!(message[0], b'v');
        assert_eq!(negotiate(&message[5..]), Ok((minor, options.len() as u32)));
    }
}

trait MapOwned {
    fn map_owned(&self) -> Vec<String>;
}

impl MapOwned for &[&str] {
    fn map_owned(&self) -> Vec<String> {
        self.iter().map(|s| (*s).to_owned()).collect()
    }
}

#[test]
fn other_protocols_are_refused_in_words_that_name_ours() {
    for code in [2u32 << 16, 1, 4 << 16 | 1, 1234 << 16 | 1] {
        let mut bytes = Vec::new();
        put_packet(&mut bytes, code, |out| out.extend_from_slice(b"\xff\xff"));
        let Ok(Some((StartupPacket::Startup(message), _))) = StartupPacket::whole(&bytes) else {
            panic!("{code:x}");
        };
        let (sqlstate, text) = told(Startup::read(&message));
        assert_eq!(sqlstate, "0A000");
        assert!(text.starts_with("unsupported frontend protocol"), "{text}");
    }
}

#[test]
fn replication_is_seen_in_every_spelling() {
    for (asks, values) in [
        (Replication::Physical, &["true", "t", "TRUE", "on", "yes", "y", "1"][..]),
        (Replication::Logical, &["database"]),
        (Replication::None, &["false", "f", "off", "of", "no", "n", "0"]),
    ] {
        for value in values {
            let startup = read(0, &[("user", "a"), ("replication", value)]).unwrap();
            assert!(startup.params.is_empty(), "{value}");
            assert_eq!(startup.replication, asks, "{value}");
        }
    }
    for value in ["", "o", "2", "databases", "Database", "tru e"] {
        assert_eq!(told(read(0, &[("user", "a"), ("replication", value)])).0, "22023", "{value:?}");
    }
}

#[test]
fn what_is_not_utf8_is_refused_but_in_application_name() {
    for (name, passes) in
        [("user", false), ("database", false), ("options", false), ("x.y", false), ("application_name", true)]
    {
        let mut bytes = Vec::new();
        let own: [(&[u8], &[u8]); 2] = [(b"user", b"ann"), (name.as_bytes(), b"\xff\xfe")];
        put_startup(&mut bytes, 0, own);
        let Ok(StartupPacket::Startup(message)) = StartupPacket::decode(&bytes[4..]) else { panic!() };
        match Startup::read(&message) {
            Ok(startup) => assert!(passes && startup.param(name) == Some("\\xff\\xfe"), "{name}"),
            Err(error) => assert!(!passes && error.sqlstate() == "22021", "{name}"),
        }
    }
}

#[test]
fn lengths_that_lie_are_refused() {
    for len in [0u32, 1, 3, 4, 7, STARTUP_BYTES_MAX as u32 + 1, 1 << 31, u32::MAX >> 1, u32::MAX] {
        let mut bytes = len.to_be_bytes().to_vec();
        bytes.extend_from_slice(&[0; 64]);
        let error = StartupPacket::whole(&bytes).expect_err("refused");
        assert_eq!(startup_error(error).message(), "invalid length of startup packet", "{len}");
    }
    assert_eq!(length((STARTUP_BYTES_MAX as u32).to_be_bytes()), Ok(STARTUP_BYTES_MAX));
    assert_eq!(length(8u32.to_be_bytes()), Ok(8));
}

#[test]
fn the_body_of_a_request_for_encryption_is_not_looked_at_and_keys_are_4_to_256_bytes() {
    for (code, request) in
        [(SSL_REQUEST, StartupPacket::SslRequest), (GSSENC_REQUEST, StartupPacket::GssEncRequest)]
    {
        let mut bytes = Vec::new();
        put_packet(&mut bytes, code, |out| out.extend_from_slice(b"more"));
        assert_eq!(StartupPacket::whole(&bytes), Ok(Some((request, 12))));
    }
    for (len, good) in [(0, false), (3, false), (4, true), (32, true), (256, true), (257, false)] {
        let mut bytes = Vec::new();
        put_cancel_request(&mut bytes, -7, &vec![9; len]);
        match StartupPacket::whole(&bytes) {
            Ok(Some((StartupPacket::CancelRequest { pid: -7, key }, _))) => {
                assert!(good && key.len() == len)
            }
            other => assert!(!good && other.is_err(), "{len}: {other:?}"),
        }
    }
}

#[test]
fn a_startup_message_ends_with_its_terminator() {
    for body in [&b""[..], b"user", b"user\0", b"user\0ann", b"user\0ann\0", b"user\0ann\0\0x\0\0", b"\0\0"] {
        let mut bytes = Vec::new();
        put_packet(&mut bytes, 3 << 16, |out| out.extend_from_slice(body));
        let error = StartupPacket::whole(&bytes).expect_err("refused");
        assert!(startup_error(error).message().starts_with("invalid startup packet layout"), "{body:?}");
    }
}

#[test]
fn replies_of_the_sasl_exchange() {
    let mut out = Vec::new();
    put_sasl_initial(&mut out, "SCRAM-SHA-256", b"n,,n=,r=x");
    assert_eq!(sasl_initial(&out[5..]), Ok((&b"SCRAM-SHA-256"[..], Some(&b"n,,n=,r=x"[..]))));
    for (body, good) in [
        (&b"M\0\xff\xff\xff\xff"[..], true),
        (b"M\0\xff\xff\xff\xfe", false),
        (b"M\0\0\0\0\x02a", false),
        (b"M\0\0\0\0\x01ab", false),
        (b"M\0\x7f\xff\xff\xff", false),
        (b"M", false),
        (b"M\0", false),
        (b"", false),
    ] {
        assert_eq!(sasl_initial(body).is_ok(), good, "{body:?}");
    }
    assert_eq!(password(b"secret\0"), Ok(&b"secret"[..]));
    for body in [&b""[..], b"secret", b"sec\0ret\0"] {
        assert!(password(body).is_err(), "{body:?}");
    }
}

proptest! {
    #[test]
    fn startup_round_trip_at_every_split_point(
        minor in 0u16..4,
        params in proptest::collection::vec(("[a-z_.]{1,12}", "[^\0]{0,20}"), 0..8),
        rest in proptest::collection::vec(any::<u8>(), 0..9),
    ) {
        let pairs: Vec<_> = params.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let bytes = packet(minor, &pairs);
        for end in 0..bytes.len() {
            prop_assert_eq!(StartupPacket::whole(&bytes[..end]), Ok(None));
        }
        let with_rest = [bytes.as_slice(), &rest].concat();
        let (decoded, len) = StartupPacket::whole(&with_rest).unwrap().unwrap();
        prop_assert_eq!(len, bytes.len());
        let StartupPacket::Startup(message) = decoded else { panic!("{decoded:?}") };
        prop_assert_eq!((message.major, message.minor), (3, minor));
        let back: Vec<_> = message.params().map(|(n, v)| (n.to_vec(), v.to_vec())).collect();
        let sent: Vec<_> = pairs.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect();
        prop_assert_eq!(back, sent);
    }

    #[test]
    fn any_bytes_are_taken_or_refused(
        code in prop_oneof![any::<u32>(), Just(3 << 16), Just(3 << 16 | 2), Just(SSL_REQUEST), Just(CANCEL_REQUEST)],
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = Vec::new();
        put_packet(&mut bytes, code, |out| out.extend_from_slice(&body));
        if let Ok(Some((StartupPacket::Startup(message), _))) = StartupPacket::whole(&bytes) {
            let _ = Startup::read(&message);
        }
        let _ = StartupPacket::whole(&body);
        let _ = negotiate(&body);
        let _ = sasl_initial(&body);
    }
}
