//! Both halves of SCRAM against each other, against the RFCs' examples, and against what lies.

use super::*;
use proptest::prelude::*;

const SALT: &[u8] = b"0123456789abcdef";

fn keys(password: &str) -> ClientKeys {
    Derivation::new(password, SALT, 7).run()
}

fn verifier(password: &str) -> Arc<Verifier> {
    Arc::new(keys(password).verifier())
}

/// A whole exchange between our halves: what the client sees, and the keys the server learned.
fn exchange(binding: Binding, end_point: Option<&[u8]>, stored: &str, given: &str) -> Result<ClientKeys> {
    let plus = binding.mechanism() == SCRAM_SHA_256_PLUS;
    let client = Client::new(binding);
    let server = Server::new(&client.first(), plus, end_point, verifier(stored), true)?;
    let challenge = client.challenge(server.first())?;
    let keys = challenge.derivation(given).run();
    let (client_final, proven) = challenge.answer(&keys)?;
    let (server_final, learned) = server.finish(&client_final)?;
    proven.check(&server_final)?;
    Ok(learned)
}

#[test]
fn the_example_of_rfc_7677() {
    let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
    let client = Client { binding: Binding::Unable, nonce: "rOprNGfwEbeRWgbNEkqO".into() };
    // PostgreSQL leaves the name empty; the RFC's example has one, so the message is put together here.
    let server_first =
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    let mut challenge = client.challenge(server_first.as_bytes()).unwrap();
    challenge.auth_message = challenge.auth_message.replacen("n=,", "n=user,", 1);
    let keys = Derivation::new("pencil", &salt, 4096).run();
    let (answer, proven) = challenge.answer(&keys).unwrap();
    let want = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                    p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    assert_eq!(String::from_utf8(answer).unwrap(), want);
    assert_eq!(proven.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), Ok(()));
}

#[test]
fn right_and_wrong_passwords_with_and_without_binding() {
    for (binding, end_point) in [
        (Binding::Unable, None),
        (Binding::Unable, Some(&b"hash"[..])),
        (Binding::NotOffered, None),
        (Binding::EndPoint(b"hash".to_vec()), Some(b"hash")),
    ] {
        let learned = exchange(binding.clone(), end_point, "secret", "secret").unwrap();
        assert_eq!(learned.client_key, keys("secret").client_key);
        assert_eq!(exchange(binding, end_point, "secret", "Secret").unwrap_err(), ScramError::WrongSecret);
    }
}

#[test]
fn passwords_are_prepared_as_stringprep_says() {
    // A soft hyphen maps to nothing, a Roman numeral to its letters.
    assert!(exchange(Binding::Unable, None, "I\u{ad}X", "IX").is_ok());
    assert!(exchange(Binding::Unable, None, "\u{2168}", "IX").is_ok());
    // Prohibited characters: taken as they are.
    assert!(exchange(Binding::Unable, None, "a\u{7}b", "a\u{7}b").is_ok());
}

/// Verifiers of PostgreSQL 15's own.
#[test]
fn a_password_with_what_is_prohibited_counts_as_it_is() {
    assert_eq!(*prepared("\u{fb01}\u{a0}\u{ad}x"), "fi x");
    for prohibited in [
        '\u{7f}',
        '\u{85}',
        '\u{e000}',
        '\u{fdd0}',
        '\u{fffd}',
        '\u{2ff0}',
        '\u{202e}',
        '\u{e0041}',
        '\u{221}',
    ] {
        let password = format!("\u{fb01}{prohibited}x");
        assert_eq!(*prepared(&password), password, "{prohibited:?}");
    }
}

#[test]
fn what_is_prohibited_is_looked_for_where_postgresql_looks() {
    for (password, verifier) in [
        // A ligature becomes its letters; a space of no width, a space.
        (
            "\u{fb01}x",
            "4096:ep1RbuDx6YCzaY+GIWdU0g==$j0o3ohvnItOoX6bbUpAgsN6M5DpyStikMPgyU5GnD2c=:WMbpd4p1ipExXTYezJTn30yd72jhTHLgRLiut3zSwUw=",
        ),
        (
            "a\u{200b}b",
            "4096:pSRdHCOIKfDd7UnrRbVsxQ==$+QcETUtMpUfv+IBV6GdiNO5MEBE8WMcj+oUBgnYewS4=:/D/93o/lQA7LC1Mlr0LsLMACiNfotfB+KvAlfJKK+dk=",
        ),
        // Both directions.
        (
            "a\u{5d0}",
            "4096:Mj/etmi+JamyOqCs/Bghzg==$+HOoSnX3dNBUVQOfBwiNyAo7hs214koLsO2N88IH9GY=:B4U3/cv/qH6KedLaTSPL3pfWs0HVOrUx3J1tGJqYu2M=",
        ),
        // Unassigned, and of the direction that is forbidden there, until they are normalized.
        (
            "ab\u{1f110}",
            "4096:9UCUpJPYENF1s3sF1oEbNQ==$P2BSGN8TxXIE3koweGwrBwhwPEno/4tD96wWU0GvgCs=:ScV5HX6TAfVVtq34luwsQJmuGkJGYqw9T1rdKnugbnw=",
        ),
        (
            "\u{5d0}\u{2135}",
            "4096:J5g0Y5Hc9BjQaIyx2f4Cqw==$PqJNwCqpAVQD6dbKjW+PyOKPwr2HGv6+2RPOF+bdt/U=:cNXZvqu9v8+yRnAwOhiqeecUfivLyhkuEMtnkRgGev4=",
        ),
        // Two directions only when they are normalized, and a tone mark that is deprecated until then.
        (
            "\u{2135}a",
            "4096:4ht1VZ/oePVDwpHLrYU+tA==$RB4y7z1RSi4IecFLkziV5uDEPLFrOboZtiTJO+JlSj8=:KybQ0zaEGd7dkCMAWOMdIffjmmjfFAT9+VojoLW2HTU=",
        ),
        (
            "a\u{340}",
            "4096:GvobmcT3+2xdk9EEM7LMfA==$riQCA6JZh1DFwL1f5gUkd4t1hWmYoH1BLNODF8o9ozQ=:tRJqR9yPfZUrOXYTFXA2mLYd2MuZMFOuKxEVVlp+v1Q=",
        ),
        // Nothing is left of it.
        (
            "\u{ad}",
            "4096:4b3pSrX6hxd73zDexAnj7w==$raiS83zdq9FAp8ZxELBEVz4hqdwccFPFnjLzy5Tj7qI=:nKsJQ51auZDtNNkv12pHhRfhIRbOBLRYUVNzpN3EP6Y=",
        ),
    ] {
        let verifier = Verifier::parse(&format!("SCRAM-SHA-256${verifier}")).unwrap();
        assert!(verifier.verify_password(password), "{}", password.escape_unicode());
    }
    // Nor is it the empty password.
    assert_eq!(exchange(Binding::Unable, None, "\u{ad}", "").unwrap_err(), ScramError::WrongSecret);
}

#[test]
fn channel_binding_that_does_not_hold_together_is_refused() {
    let end_point = |hash: &[u8]| Binding::EndPoint(hash.to_vec());
    let run = |binding, own| exchange(binding, own, "s", "s").unwrap_err();
    assert!(matches!(run(end_point(b"other"), Some(b"hash")), ScramError::Binding(_)));
    // A server that offers it is told that it does not: someone removed the offer.
    assert!(matches!(run(Binding::NotOffered, Some(b"hash")), ScramError::Binding(_)));
    assert!(matches!(run(end_point(b"hash"), None), ScramError::Malformed(_)));
}

#[test]
fn keys_that_the_proof_reveals_log_in_with_the_same_verifier_only() {
    let learned = exchange(Binding::Unable, None, "secret", "secret").unwrap();
    let log_in = |verifier: Arc<Verifier>| -> Result<()> {
        let client = Client::new(Binding::Unable);
        let server = Server::new(&client.first(), false, None, verifier, true)?;
        let (answer, proven) = client.challenge(server.first())?.answer(&learned)?;
        proven.check(&server.finish(&answer)?.0)
    };
    assert_eq!(log_in(verifier("secret")), Ok(()));
    let other_salt = Derivation::new("secret", b"another salt", 7).run().verifier();
    assert_eq!(log_in(Arc::new(other_salt)), Err(ScramError::OtherVerifier));
}

#[test]
fn a_stranger_walks_the_whole_way_and_is_refused_at_its_end() {
    let client = Client::new(Binding::Unable);
    let server = Server::new(&client.first(), false, None, verifier("secret"), false).unwrap();
    let challenge = client.challenge(server.first()).unwrap();
    let (answer, _) = challenge.answer(&keys("secret")).unwrap();
    assert_eq!(server.finish(&answer).unwrap_err(), ScramError::WrongSecret);
}

/// Client messages: each attribute dropped, repeated, reordered, emptied.
#[test]
fn client_first_grammar() {
    let long = format!("n,,n=,r={}", "x".repeat(SASL_ATTRIBUTE_BYTES_MAX + 1));
    let longest = format!("n,,n=,r={}", "x".repeat(SASL_ATTRIBUTE_BYTES_MAX));
    for (message, good) in [
        ("n,,n=,r=abc", true),
        ("n,,n=someone,r=abc", true),
        ("y,,n=,r=abc", true),
        ("n,,n=,r=abc,x=ext", true),
        ("n,,n=,r=abc,1=ext", false),
        (longest.as_str(), true),
        (long.as_str(), false),
        ("", false),
        ("n", false),
        ("n,", false),
        ("n,,", false),
        (",,n=,r=abc", false),
        ("x,,n=,r=abc", false),
        ("nn,,n=,r=abc", false),
        ("p=tls-server-end-point,,n=,r=abc", false),
        ("n,a=root,n=,r=abc", false),
        ("n,b=root,n=,r=abc", false),
        ("n,,r=abc", false),
        ("n,,n=", false),
        ("n,,n=,", false),
        ("n,,r=abc,n=", false),
        ("n,,n=,n=,r=abc", false),
        ("n,,n=,r=abc,r=abc", false),
        ("n,,n=,r=abc,n=", false),
        ("n,,n=,r=abc,", false),
        ("n,,n=,r=", false),
        ("n,,n=,r=a b", false),
        ("n,,n=,r=a\u{7f}", false),
        ("n,,m=x,n=,r=abc", false),
        ("n,,n=,r=abc,m=x", false),
        ("n,,n=,rabc", false),
    ] {
        let server = Server::new(message.as_bytes(), false, None, verifier("s"), true);
        assert_eq!(server.is_ok(), good, "{message:.60}: {server:?}");
    }
    for (message, good) in [
        ("p=tls-server-end-point,,n=,r=abc", true),
        ("p=tls-unique,,n=,r=abc", false),
        ("p=tls-exporter,,n=,r=abc", false),
        ("p=,,n=,r=abc", false),
    ] {
        let server = Server::new(message.as_bytes(), true, Some(&b"hash"[..]), verifier("s"), true);
        assert_eq!(server.is_ok(), good, "{message}: {server:?}");
    }
}

#[test]
fn client_final_grammar() {
    let client_first = b"n,,n=,r=abc";
    let run = |edit: &dyn Fn(&str, &str, &str) -> String| {
        let server = Server::new(client_first, false, None, verifier("s"), true).unwrap();
        let client = Client { binding: Binding::Unable, nonce: "abc".into() };
        let (answer, _) = client.challenge(server.first()).unwrap().answer(&keys("s")).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let parts: Vec<_> = answer.splitn(3, ',').collect();
        server.finish(edit(parts[0], parts[1], parts[2]).as_bytes()).map(drop)
    };
    assert_eq!(run(&|c, r, p| format!("{c},{r},{p}")), Ok(()));
    // An extension is part of what the proof covers, which here it is not.
    assert_eq!(run(&|c, r, p| format!("{c},{r},x=1,{p}")), Err(ScramError::WrongSecret));
    type Edit = fn(&str, &str, &str) -> String;
    let broken: &[Edit] = &[
        |_, _, _| String::new(),
        |_, r, p| format!("{r},{p}"),
        |c, _, p| format!("{c},{p}"),
        |c, r, _| format!("{c},{r}"),
        |c, r, _| format!("{c},{r},"),
        |c, _, _| c.to_owned(),
        |c, r, p| format!("{r},{c},{p}"),
        |c, r, p| format!("{p},{c},{r}"),
        |c, r, p| format!("{c},{r},{p},{p}"),
        |c, r, p| format!("{c},{r},{p},x=1"),
        |c, r, p| format!("{c},{r},{p},"),
        |c, r, p| format!("{c},{c},{r},{p}"),
        |c, r, p| format!("{c},{r},{r},{p}"),
        |c, r, p| format!("{c},{r},m=x,{p}"),
        |c, r, _| format!("{c},{r},p="),
        |c, r, _| format!("{c},{r},p=AAAA"),
        |c, r, _| format!("{c},{r},p=!"),
        |c, r, p| format!("{c},{r}x,{p}"),
        |c, _, p| format!("{c},r=abc,{p}"),
        |_, r, p| format!("c=,{r},{p}"),
        |_, r, p| format!("c=eSws,{r},{p}"),
        |c, r, p| format!("{c}\0,{r},{p}"),
    ];
    for (i, edit) in broken.iter().enumerate() {
        let error = run(edit).expect_err("refused");
        assert!(!matches!(error, ScramError::WrongSecret), "case {i}: {error:?}");
    }
}

#[test]
fn server_first_grammar() {
    let nonce = "r=abcdef";
    let million = format!("{nonce},s=c2FsdA==,i={SCRAM_ITERATIONS_MAX}");
    let more = format!("{nonce},s=c2FsdA==,i={}", SCRAM_ITERATIONS_MAX + 1);
    let long_nonce = format!("r=abc{},s=c2FsdA==,i=1", "x".repeat(1 << 20));
    let long_salt = format!("{nonce},s={},i=1", "A".repeat(1 << 20));
    for (message, good) in [
        ("r=abcdef,s=c2FsdA==,i=4096", true),
        ("r=abcdef,s=c2FsdA==,i=4096,x=ext", true),
        (million.as_str(), true),
        (more.as_str(), false),
        (long_nonce.as_str(), false),
        (long_salt.as_str(), false),
        ("", false),
        ("r=abcdef", false),
        ("r=abcdef,s=c2FsdA==", false),
        ("s=c2FsdA==,i=4096", false),
        ("r=abcdef,i=4096", false),
        ("s=c2FsdA==,r=abcdef,i=4096", false),
        ("r=abcdef,i=4096,s=c2FsdA==", false),
        ("r=abcdef,r=abcdef,s=c2FsdA==,i=4096", false),
        ("r=abcdef,s=c2FsdA==,i=4096,i=1", false),
        ("r=abcdef,s=c2FsdA==,i=4096,", false),
        ("m=x,r=abcdef,s=c2FsdA==,i=4096", false),
        ("e=other-error", false),
        ("r=abc,s=c2FsdA==,i=4096", false),
        ("r=a,s=c2FsdA==,i=4096", false),
        ("r=xabcdef,s=c2FsdA==,i=4096", false),
        ("r=,s=c2FsdA==,i=4096", false),
        ("r=abcdef,s=,i=4096", false),
        ("r=abcdef,s=!,i=4096", false),
        ("r=abcdef,s=c2FsdA==,i=", false),
        ("r=abcdef,s=c2FsdA==,i=0", false),
        ("r=abcdef,s=c2FsdA==,i=-1", false),
        ("r=abcdef,s=c2FsdA==,i=+1", false),
        ("r=abcdef,s=c2FsdA==,i=2147483647", false),
        ("r=abcdef,s=c2FsdA==,i=4294967297", false),
        ("r=abcdef,s=c2FsdA==,i=99999999999999999999", false),
    ] {
        let client = Client { binding: Binding::Unable, nonce: "abc".into() };
        let challenge = client.challenge(message.as_bytes());
        assert_eq!(challenge.is_ok(), good, "{message:.60}");
    }
}

#[test]
fn server_final_grammar() {
    let proven = || Proven { server_signature: Zeroizing::new([7; 32]) };
    let right = BASE64.encode([7; 32]);
    assert_eq!(proven().check(format!("v={right}").as_bytes()), Ok(()));
    assert_eq!(proven().check(format!("v={right},x=1").as_bytes()), Ok(()));
    assert_eq!(proven().check(b"e=invalid-proof"), Err(ScramError::Refused));
    let wrong = BASE64.encode([8; 32]);
    assert_eq!(proven().check(format!("v={wrong}").as_bytes()), Err(ScramError::WrongSecret));
    assert_eq!(proven().check(b"v="), Err(ScramError::WrongSecret));
    for message in ["", "v", "x=1", "v=!", &format!("v={right},"), &format!("v={right},v={right}")] {
        assert!(matches!(proven().check(message.as_bytes()), Err(ScramError::Malformed(_))), "{message}");
    }
}

#[test]
fn stored_verifiers_are_read_whole_or_not_at_all() {
    // Of the password "foo", made with another implementation.
    let good = "SCRAM-SHA-256$4096:VLK4RMaQLCvNtQ==$Pe0jdveq+pOxvb1xvMGLfW7lDtAYApzFg9FS7z/H1DA=:\
                    pt0238lMGBlWpq6V8F4BsYZPCiKiZX0d5LqE0qJNxDg=";
    let verifier = Verifier::parse(good).expect("good");
    assert!(verifier.verify_password("foo") && !verifier.verify_password("bar"));
    for text in [
        "",
        "md5abc",
        &good.replace("4096", "0"),
        &good.replace("4096", "99999999999"),
        &good.replace("SCRAM-SHA-256", "SCRAM-SHA-1"),
        &good.replace(':', "$"),
        &good[..good.len() - 4],
        &good.replace("VLK4RMaQLCvNtQ==", ""),
    ] {
        assert!(Verifier::parse(text).is_none(), "{text}");
    }
}

#[test]
fn debug_shows_no_key() {
    let keys = keys("secret");
    for text in [format!("{keys:?}"), format!("{:?}", keys.verifier())] {
        assert!(text.len() < 60 && !text.contains('['), "{text}");
    }
}

/// Attributes of the grammar, in any order and number.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let attribute = prop_oneof![
        "[a-zA-Z]=[!-~]{0,12}",
        Just("n,,n=".to_owned()),
        Just("r=abc".to_owned()),
        Just("r=abcdef".to_owned()),
        Just("s=c2FsdA==".to_owned()),
        Just("i=3".to_owned()),
        Just("c=biws".to_owned()),
        Just(format!("p={}", BASE64.encode([1; 32]))),
        "\\PC{0,6}",
    ];
    let text = proptest::collection::vec(attribute, 0..7).prop_map(|parts| parts.join(",").into_bytes());
    prop_oneof![text, proptest::collection::vec(any::<u8>(), 0..64)]
}

proptest! {
    #[test]
    fn no_message_panics_or_passes(first in message(), second in message(), plus: bool, own: bool) {
        let end_point = own.then_some(&b"hash"[..]);
        if let Ok(server) = Server::new(&first, plus, end_point, verifier("s"), true) {
            prop_assert!(server.finish(&second).is_err());
        }
        let client = Client { binding: Binding::Unable, nonce: "abc".into() };
        if let Ok(challenge) = client.challenge(&first) {
            let keys = challenge.derivation("s").run();
            let (_, proven) = challenge.answer(&keys).unwrap();
            prop_assert!(proven.check(&second).is_err());
        }
    }

    #[test]
    fn any_password_passes_with_itself(password in "\\PC{0,20}") {
        prop_assert!(exchange(Binding::Unable, None, &password, &password).is_ok());
    }

    #[test]
    fn any_text_is_a_verifier_or_not(text in "(SCRAM-SHA-256\\$)?[0-9]{0,12}:?[A-Za-z0-9+/=]{0,60}\\$?[A-Za-z0-9+/=:]{0,99}") {
        let _ = Verifier::parse(&text);
    }
}
