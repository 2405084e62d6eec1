//! The userlist and the HBA file.

use super::*;

#[test]
fn a_userlist_is_read_as_pgbouncer_reads_it() {
    let md5 = "md50123456789abcdef0123456789abcdef";
    let text = format!(
        "; comment\n# comment\n\n\"plain\" \"pass word\"\n  \"md5\"   \"{md5}\" ignored \"rest\"\n\
         \"scram\" \"{VERIFIER}\"\n\"quo\"\"te\" \"a\"\"b\"\n\"empty\" \"\"\n\"long\" \"md5tooshort\"\n\
         \"odd\" \"md5g123456789abcdef0123456789abcdef\"\n"
    );
    let (users, draft) = with_draft(|draft, file| userlist::parse(draft, file, &text));
    assert_eq!(draft.problems, []);
    assert_eq!(users["plain"], Secret::Plain("pass word".into()));
    assert_eq!(users["md5"], Secret::Md5(md5.into()));
    assert_eq!(users["scram"], Secret::Scram(VERIFIER.into()));
    assert_eq!(users["quo\"te"], Secret::Plain("a\"b".into()));
    assert_eq!(users["empty"], Secret::Plain(String::new()));
    assert_eq!(users["long"], Secret::Plain("md5tooshort".into()));
    assert_eq!(users["odd"], Secret::Plain("md5g123456789abcdef0123456789abcdef".into()));
    assert_eq!(users.len(), 7);
}

#[test]
fn each_mistake_in_a_userlist_is_named() {
    let long = format!("\"{}\" \"x\"", "n".repeat(64));
    let cases: &[(&str, &str)] = &[
        ("name secret", "write \"name\" \"secret\""),
        ("\"name\"", "write \"name\" \"secret\""),
        ("\"name\" \"open", "write \"name\" \"secret\""),
        ("\"\" \"x\"", "the name is empty"),
        (&long, "PostgreSQL reads 63 bytes of a name; write no more"),
        ("\"first\" \"x\"", "stands in line 1 already; keep one of the two"),
        ("\"u\" \"SCRAM-SHA-256$4096:c2FsdA==$short:short\"", "copy rolpassword from pg_authid"),
        ("\"u\" \"SCRAM-SHA-256$\"", "copy rolpassword from pg_authid"),
    ];
    for (line, says) in cases {
        let text = format!("\"first\" \"x\"\n{line}\n");
        let ((), draft) = with_draft(|draft, file| drop(userlist::parse(draft, file, &text)));
        assert_one(&draft.problems, ("file", Some(2), "auth_file", says));
    }
}

#[test]
fn of_a_name_that_stands_twice_in_pgbouncers_userlist_the_last_holds() {
    let ini = "[databases]\na = host=h\n[pgbouncer]\nauth_type = md5\nauth_file = userlist.txt\n";
    let dir = files(&[("a.ini", ini), ("userlist.txt", "\"u\" \"old\"\n\"v\" \"x\"\n\"u\" \"new\"\n")]);
    let loaded = read_in(&dir, "a.ini").expect("PgBouncer takes it");
    assert_eq!(loaded.settings.userlist["u"], Secret::Plain("new".into()));
    assert_eq!(loaded.settings.userlist.len(), 2);
    let says =
        ("userlist.txt", Some(3), "auth_file", "\"u\" stands in line 1 already; what stands last holds");
    assert_one(&loaded.notices, says);
    // And when it is read again.
    let again = with_userlist(&dir.path().join("a.ini"), &loaded.settings).expect("as good as at the start");
    assert_one(&again.notices, says);
    assert_eq!(again.settings.userlist["u"], Secret::Plain("new".into()));
    // A line that is none is an error also there.
    std::fs::write(dir.path().join("userlist.txt"), "\"u\" \"old\"\na x\n").expect("a file");
    let problems = read_in(&dir, "a.ini").expect_err("a line that is none");
    assert_one(&problems, ("userlist.txt", Some(2), "auth_file", "write \"name\" \"secret\""));
}

#[test]
fn hba_rules_are_read_as_postgresql_reads_them() {
    let dir = files(&[("names", "one, two # three\n\"four\"\n")]);
    let file = dir.path().join("hba");
    let text = "# comment\nlocal all all trust\nhost app,sameuser @names 10.1.2.3/8 md5\n\
        hostssl all postgres 192.168.0.0 255.255.0.0 scram-sha-256 # comment\n\
        hostnossl all all ::1/128 reject\nhost all all all password\nhostssl all all 2001:db8:: ffff:ffff:: cert\n\
        host replication,all replication all md5\nhost replication all all trust\n";
    let mut draft = Draft::new(&file);
    let rules = hba::parse(&mut draft, &file, text);
    assert_eq!(draft.problems, []);
    assert_eq!(draft.notices.len(), 0);
    let shown: Vec<String> = rules
        .iter()
        .map(|rule| {
            format!(
                "{} {:?} {:?} {:?} {:?} {:?}",
                rule.line, rule.transport, rule.databases, rule.users, rule.address, rule.method
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            r#"2 Local [] [] None Some(Trust)"#,
            r#"3 Host ["app", "sameuser"] ["one", "two", "four"] Some((10.0.0.0, 8)) Some(Md5)"#,
            r#"4 HostSsl [] ["postgres"] Some((192.168.0.0, 16)) Some(ScramSha256)"#,
            r#"5 HostNoSsl [] [] Some((::1, 128)) None"#,
            r#"6 Host [] [] None Some(Plain)"#,
            r#"7 HostSsl [] [] Some((2001:db8::, 32)) Some(Cert)"#,
            r#"8 Host ["replication", "all"] ["replication"] None Some(Md5)"#,
            r#"9 Host ["replication"] [] None Some(Trust)"#,
        ]
    );
}

#[test]
fn each_mistake_in_an_hba_file_is_named() {
    let too_long = format!("host all {} all reject", "u".repeat(64));
    let cases: &[(&str, &str)] = &[
        ("hots all all all trust", "expected local, host, hostssl or hostnossl"),
        ("\u{c}host all all all reject", "expected local, host, hostssl or hostnossl"),
        ("\u{a0}host all all all reject", "expected local, host, hostssl or hostnossl"),
        ("local all all\u{b}reject", "ends before its method"),
        ("host all all 10.0.0.0/8 pam", "expected trust, reject, md5"),
        ("host all all 10.0.0.0/33 trust", "expected all, or an address"),
        ("host all all 10.0.0.0/+8 trust", "expected all, or an address"),
        ("host all all samehost trust", "expected all, or an address"),
        ("host all all db.example trust", "expected all, or an address"),
        ("host all all 10.0.0.1 trust", "write 10.0.0.1/32"),
        ("host all all 10.0.0.0 255.0.255.0 trust", "is not a mask"),
        ("host all all 10.0.0.0 ffff:: trust", "is not a mask"),
        ("host all +group all trust", "no groups"),
        ("host all +gr\"ou\"p all reject", "no groups"),
        ("host samerole all all trust", "write other names"),
        ("host \"all\" all all trust", "is not understood as a name"),
        ("host \"sameuser\" all all trust", "is not understood as a name"),
        ("host all app,\"all\" all trust", "is not understood as a name"),
        ("host all sameuser all trust", "is not understood as a name"),
        ("host @keyword all all trust", "\"sameuser\" is not a name"),
        ("host all @missing all trust", "@missing: cannot be read"),
        ("host all @empty all trust", "holds no names"),
        ("host all \"\" all trust", "the user is empty"),
        ("host all", "ends before its user"),
        ("host all all all", "ends before its method"),
        ("host all \"open all trust", "double quote is not closed"),
        (", all", "begins with a comma"),
        ("host all all all md5 map=m", "for the methods cert and peer only"),
        ("local all all reject map=m", "for the methods cert and peer only"),
        ("local all all peer map=", "option \"map=\" is not understood"),
        ("local all all peer map=a map=b", "option \"map=b\" is not understood"),
        ("local all all peer clientname=CN", "option \"clientname=CN\" is not understood"),
        ("hostssl all all all cert clientname=DN", "option \"clientname=DN\" is not understood"),
        ("host all all all peer", "make the rule a local rule"),
        ("local all all 10.0.0.0/8 trust", "found method"),
        ("host all \"/^a\" all reject", "no patterns"),
        ("host \"/^a\" all all reject", "no patterns"),
        ("host all all ::ffff:10.1.2.3/128 reject", "write 10.1.2.3/32"),
        ("host all all ::ffff:10.0.0.0/104 reject", "write 10.0.0.0/8"),
        ("host all all ::ffff:10.0.0.0 ffff:ffff:ffff:ffff:ffff:ffff:ff00:: reject", "write 10.0.0.0/8"),
        (&too_long, "reads 63 bytes"),
    ];
    let dir = files(&[("empty", "# nobody\n"), ("keyword", "a \"sameuser\"\n")]);
    let file = dir.path().join("hba");
    for (line, says) in cases {
        let mut draft = Draft::new(&file);
        let rules = hba::parse(&mut draft, &file, &format!("\n{line}\n"));
        assert_one(&draft.problems, ("hba", Some(2), "auth_hba_file", says));
        assert!(rules.is_empty() || line.contains("@empty"), "{line}");
    }
}

/// Of what looks like a blank PostgreSQL takes a space, a tab and a return for one. The rest belongs to the word it stands in.
#[test]
fn words_of_an_hba_file_end_where_postgresql_ends_them() {
    let file = Path::new("hba");
    let mut draft = Draft::new(file);
    let rules = hba::parse(&mut draft, file, "local\tall\ra\u{a0}b,\u{2003}c,d\u{c} reject\n");
    assert_eq!(draft.problems, []);
    assert_eq!(rules[0].users, ["a\u{a0}b", "\u{2003}c", "d\u{c}"]);
}

#[test]
fn an_hba_file_with_a_mistake_keeps_its_passwords() {
    let file = Path::new("hba");
    for line in [
        "host all all all md5 ldapbindpasswd=sesame",
        "host all all all cert ldapbindpasswd=sesame",
        "host all all all ldapbindpasswd=sesame",
        "host all all ldapbindpasswd=sesame",
        "host all all all ldap ldapserver=h ldapbasedn=b ldapbindpasswd=open sesame",
        "host all all all md5 ldapurl=ldap://u:sesame@h/dc=x",
        "host all all all ldap ldapurl=ldap://u:sesame@h/dc=x",
    ] {
        let mut draft = Draft::new(file);
        assert!(hba::parse(&mut draft, file, line).is_empty(), "{line}");
        let told: Vec<_> = draft.problems.iter().map(ToString::to_string).collect();
        assert!(told.len() == 1 && !told[0].contains("sesame"), "{line}: {told:?}");
    }
}

#[test]
fn an_ident_file() {
    let text = "# maps\nops root app\nops \"Ann Lee\" \"all\"\n\ncerts ann all # anybody\nops \"+x\" y\n";
    let (maps, draft) = with_draft(|draft, file| hba::parse_ident(draft, file, text));
    assert_eq!(draft.problems, []);
    let shown = |map: &str| -> Vec<(&str, Option<&str>)> {
        maps[map].iter().map(|line| (line.system.as_str(), line.user.as_deref())).collect()
    };
    assert_eq!(maps.len(), 2);
    assert_eq!(shown("ops"), [("root", Some("app")), ("Ann Lee", Some("all")), ("+x", Some("y"))]);
    assert_eq!(shown("certs"), [("ann", None)]);
}

#[test]
fn each_mistake_in_an_ident_file_is_named() {
    for (line, says) in [
        ("ops root", "write MAP SYSTEM-NAME USER"),
        ("ops root app more", "write MAP SYSTEM-NAME USER"),
        ("ops /^(.*)@x$ \\1", "no lists, groups, patterns or files"),
        ("ops \"/^(.*)@x$\" \\1", "no lists, groups, patterns or files"),
        ("ops root +group", "no lists, groups, patterns or files"),
        ("ops root, app", "no lists, groups, patterns or files"),
        ("ops \"\" app", "no lists, groups, patterns or files"),
        ("ops root \"app", "double quote is not closed"),
    ] {
        let (maps, draft) = with_draft(|draft, file| hba::parse_ident(draft, file, &format!("\n{line}\n")));
        assert_one(&draft.problems, ("file", Some(2), "auth_ident_file", says));
        assert!(maps.is_empty(), "{line}");
    }
}

#[test]
fn hba_rules_mean_to_the_comparison_what_they_say() {
    use crate::auth::hba::{Asker, find};
    use crate::wire::startup::Replication;
    let text = "host sameuser all 10.0.0.0/8 trust\nhost app,other ann all md5\nhost all all ::/0 reject\n";
    let (rules, draft) = with_draft(|draft, file| hba::parse(draft, file, text));
    assert_eq!(draft.problems, []);
    let line = |database, user, ip: &str| {
        let asker = Asker { ip: ip.parse().ok(), tls: false, database, user, replication: Replication::None };
        find(&rules, &asker).map(|rule| rule.line)
    };
    assert_eq!(line("bob", "bob", "10.1.1.1"), Some(1));
    assert_eq!(line("bob", "ann", "10.1.1.1"), None);
    assert_eq!(line("app", "ann", "10.1.1.1"), Some(2));
    assert_eq!(line("app", "bob", "2001:db8::1"), Some(3));
}

#[test]
fn hba_rules_need_what_their_methods_need() {
    let text = "[general]\nauth_type=\"hba\"\nauth_hba_file=\"hba\"\nauth_ident_file=\"ident\"\n\
                [databases.app]\nhost=\"a\"\n";
    for (hba, says) in [
        ("hostssl all all all cert\n", "set client_tls_sslmode to allow or more, and client_tls_ca_file"),
        ("host all all all md5\n", "set auth_file to a userlist"),
        ("local all all peer map=other\n", "no line of auth_ident_file is for the map \"other\""),
    ] {
        let problems = refused("a.toml", text, &[("hba", hba), ("ident", "ops root app\n")]);
        assert_one(&problems, ("hba", Some(1), "auth_hba_file", says));
    }
    // A lookup is as good as a userlist.
    let text = text.replace("[databases.app]", "auth_user=\"lookup\"\n[databases.app]");
    let dir = files(&[("a.toml", &*text), ("hba", "host all all all md5\n"), ("ident", "ops root app\n")]);
    assert!(read_in(&dir, "a.toml").is_ok());
    let text = text.replace("auth_user=\"lookup\"\n", "") + "auth_user=\"lookup\"\n";
    let hba = "local all all md5\nhostssl all all all md5\nhost all all all md5\nhostnossl all all all md5\n";
    let dir = files(&[("a.toml", &*text), ("hba", hba), ("ident", "ops root app\n")]);
    let notices = read_in(&dir, "a.toml").expect("a lookup in the one database").notices;
    assert_one(&notices, ("hba", Some(2), "auth_hba_file", "no client can match hostssl"));
}

#[test]
fn a_line_that_ends_in_a_backslash_goes_on_a_comment_too() {
    let text = "# once: \\\nhost all all 0.0.0.0/0 trust\nlocal all \\\n all trust\n# the last \\";
    let (rules, draft) = with_draft(|draft, file| hba::parse(draft, file, text));
    assert!(draft.problems.is_empty(), "{:?}", draft.problems);
    assert_eq!(rules.iter().map(|rule| rule.line).collect::<Vec<_>>(), [3]);
    let text = "# map \\\n m a b\nm c d";
    let (maps, _) = with_draft(|draft, file| hba::parse_ident(draft, file, text));
    assert_eq!(maps["m"].len(), 1);
}
