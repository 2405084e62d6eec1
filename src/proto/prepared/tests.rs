//! Names of prepared statements on both sides, and the bytes that their texts take.

use super::*;

fn statement(text: &str) -> Arc<Statement> {
    Statement::new(text.as_bytes(), &[], Effects::NONE)
}

#[test]
fn struck_parse_gives_the_name_back_its_old_meaning() {
    let (a, b) = (statement("a"), statement("b"));
    let (mut names, mut server) = (ClientNames::default(), ServerNames::default());
    server.add(a.id, 10);
    names.parse(b"s", Arc::clone(&a), Some(a.id));
    names.settle();
    server.add(b.id, 10);
    names.close(b"s");
    names.parse(b"s", Arc::clone(&b), Some(b.id));
    assert_eq!(names.lookup(b"s").unwrap().id, b.id);
    names.strike(2, &mut server);
    assert_eq!(names.lookup(b"s").unwrap().id, a.id);
    assert!(server.holds(a.id) && !server.holds(b.id));
}

#[test]
fn what_is_noted_of_a_name_goes_when_names_change() {
    let (mut names, mut server) = (ClientNames::default(), ServerNames::default());
    let (a, b) = (statement("a"), statement("b"));
    type Change<'a> = &'a dyn Fn(&mut ClientNames, &mut ServerNames);
    let changes: [Change<'_>; 11] = [
        &|names, _| names.parse(b"s", Arc::clone(&b), None),
        &|names, server| names.strike(1, server),
        &|names, _| names.close(b"s"),
        &|names, server| names.fail(1, server),
        &|names, _| names.forget(b"s"),
        &|names, _| names.replace(a.id, &b),
        &|names, _| names.set_unnamed(None),
        &|names, _| names.forget_unnamed(),
        &|names, _| names.clear(),
        &|names, server| names.parse_unnamed(Arc::clone(&b), server, 1),
        &|names, server| names.strike(1, server),
    ];
    names.parse(b"s", Arc::clone(&a), None);
    names.settle();
    for change in changes {
        names.note_unpoured(ShortName::new(b"s"));
        assert!(names.begins_with_unpoured(b"s\0\0\0") && !names.begins_with_unpoured(b"st\0"));
        change(&mut names, &mut server);
        assert!(!names.begins_with_unpoured(b"s\0\0\0"));
    }
    names.note_unpoured(ShortName::new(b""));
    assert!(names.begins_with_unpoured(b"\0\0") && !names.begins_with_unpoured(b"s\0"));
    names.note_unpoured(ShortName::new(&[b's'; SHORT_NAME_BYTES_MAX]));
    assert!(!names.begins_with_unpoured(&[b's'; SHORT_NAME_BYTES_MAX]));
}

#[test]
fn failed_parse_takes_the_unnamed_statement_away() {
    let (mut names, mut server) = (ClientNames::default(), ServerNames::default());
    names.set_unnamed(Some(statement("a")));
    names.parse_unnamed(statement("b"), &mut server, 1);
    names.parse_unnamed(statement("c"), &mut server, 1);
    names.strike(2, &mut server);
    assert_eq!(&*names.lookup(b"").unwrap().query, b"a");
    names.parse_unnamed(statement("b"), &mut server, 1);
    names.parse_unnamed(statement("c"), &mut server, 1);
    names.fail(2, &mut server);
    assert!(names.lookup(b"").is_none());
    // One with a name, and what stood behind it.
    names.set_unnamed(Some(statement("a")));
    names.parse(b"s", statement("b"), None);
    names.parse_unnamed(statement("c"), &mut server, 1);
    names.fail(2, &mut server);
    assert_eq!(&*names.lookup(b"").unwrap().query, b"a");
}

#[test]
fn struck_parse_is_nothing_to_one_behind_it() {
    let (mut names, mut server) = (ClientNames::default(), ServerNames::default());
    for name in [&b""[..], b"s"] {
        let parse = |names: &mut ClientNames, server: &mut ServerNames, text| match name {
            b"" => names.parse_unnamed(statement(text), server, 1),
            _ => names.parse(name, statement(text), None),
        };
        parse(&mut names, &mut server, "a");
        names.settle();
        parse(&mut names, &mut server, "b");
        parse(&mut names, &mut server, "c");
        names.strike(1, &mut server);
        assert_eq!(&*names.lookup(name).unwrap().query, b"c");
        names.strike(1, &mut server);
        assert_eq!(&*names.lookup(name).unwrap().query, b"a");
    }
    names.parse_unnamed(statement("b"), &mut server, 1);
    names.forget_unnamed();
    names.strike(1, &mut server);
    assert!(names.lookup(b"").is_none(), "a Query stood between");
}

#[test]
fn what_an_earlier_unit_changed_is_in_doubt() {
    let (mut names, mut server) = (ClientNames::default(), ServerNames::default());
    names.parse_unnamed(statement("a"), &mut server, 1);
    assert!(!names.is_in_doubt(b"", 1), "it is of this unit");
    assert!(names.is_in_doubt(b"", 0) && !names.is_in_doubt(b"s", 0));
    names.parse_unnamed(statement("b"), &mut server, 1);
    assert!(!names.is_in_doubt(b"", 1), "the last one counts");
    names.parse_on_server(7);
    assert!(!names.is_in_doubt(b"", 2) && !names.is_in_doubt(b"s", 1));
    assert!(names.is_in_doubt(b"", 1) && names.is_in_doubt(b"s", 0));
    (0..3).for_each(|_| names.settle());
    assert!(!names.is_in_doubt(b"", 0) && !names.is_in_doubt(b"s", 0));
}

#[test]
fn struck_close_of_ours_leaves_the_statement_where_it_is() {
    let (mut names, mut server) = (ClientNames::default(), ServerNames::default());
    server.add(1, 1);
    assert_eq!(server.add(2, 1), [1]);
    names.close_on_server(1);
    names.parse_on_server(2);
    names.strike(2, &mut server);
    assert!(server.holds(1) && !server.holds(2));
    assert_eq!(server.add(3, 1), [1]);
}

#[test]
fn struck_unnamed_parse_leaves_nobody_in_its_place() {
    let (mut names, mut server) = (ClientNames::default(), ServerNames::default());
    server.unnamed = Some(7);
    names.parse_on_server(7);
    names.strike(1, &mut server);
    assert_eq!(server.unnamed, None);
}

#[test]
fn struck_unnamed_parse_leaves_what_stood_there() {
    let (mut names, mut server) = (ClientNames::default(), ServerNames::default());
    names.parse_unnamed(statement("a"), &mut server, 1);
    names.settle();
    names.parse_unnamed(statement("b"), &mut server, 1);
    names.close_unnamed(&mut server);
    assert!(!names.unnamed_is_at(&server, 1));
    names.strike(2, &mut server);
    assert!(names.unnamed_is_at(&server, 1) && !names.unnamed_is_at(&server, 2));
    assert_eq!(&*names.lookup(b"").unwrap().query, b"a");
    // The first is struck, the second is not: what that took the place of was never there.
    names.parse_unnamed(statement("b"), &mut server, 1);
    names.parse_unnamed(statement("c"), &mut server, 1);
    names.strike(1, &mut server);
    names.strike(1, &mut server);
    assert!(names.unnamed_is_at(&server, 1));
    // A Parse of ours that failed: the statement is the client's still, and is not there.
    names.parse_unnamed_again(&mut server, 1);
    names.fail(1, &mut server);
    assert!(names.lookup(b"").is_some() && !names.unnamed_is_at(&server, 1));
    // What nobody takes back stands.
    names.parse_unnamed(statement("d"), &mut server, 1);
    server.unnamed = None;
    names.strike(1, &mut server);
    assert_eq!(server.unnamed, None);
}

#[test]
fn equal_content_is_one_statement_and_bytes_are_bounded() {
    let (all, own) = (Statements::default(), Arc::default());
    let a = all.intern(b"select 1", &[], 0, || Effects::NONE, 10, &own).unwrap();
    let b = all.intern(b"select 1", &[], 0, || Effects::NONE, 10, &own).unwrap();
    assert_eq!(a.id, b.id);
    let other = all.intern(b"select 1", &[], 1, || Effects::NONE, 100, &own).unwrap();
    assert_ne!(a.id, other.id, "a literal may mean something else under other settings");
    drop(other);
    assert!(all.intern(b"select 2", &[], 0, || Effects::NONE, 10, &own).is_none());
    let another = Arc::default();
    assert!(all.intern(b"select 2", &[], 0, || Effects::NONE, 10, &another).is_none());
    drop((a, b));
    assert_eq!((all.bytes(), own.load(Ordering::Relaxed)), (0, 0));
    assert!(all.intern(b"select 2", &[], 0, || Effects::NONE, 10, &own).is_some());
}

#[test]
fn a_pool_has_its_share_of_the_bytes_whatever_others_keep() {
    let (all, much, little) = (Statements::default(), Arc::default(), Arc::default());
    let intern =
        |text: &str, own: &Arc<AtomicUsize>| all.intern(text.as_bytes(), &[], 0, || Effects::NONE, 640, own);
    let _kept = intern(&"a".repeat(640), &much).unwrap();
    assert!(intern("b", &much).is_none());
    let share = intern("select 123", &little).unwrap();
    assert!(intern("b", &little).is_none(), "and no more");
    assert_eq!(intern("select 123", &much).unwrap().id, share.id, "what is there is everybody's");
}

/// The same text is another statement once, and one again, behind what `spoil` does.
fn is_another_behind(spoil: impl FnOnce(&Statements, &Statement)) {
    let (all, own) = (Statements::default(), Arc::default());
    let intern = || all.intern(b"select 1", &[], 0, || Effects::NONE, 100, &own).unwrap();
    let before = intern();
    spoil(&all, &before);
    let behind = intern();
    assert_ne!(before.id, behind.id);
    assert_eq!(behind.id, intern().id);
}

#[test]
fn what_was_made_stale_is_not_found_again() {
    is_another_behind(|_, statement| statement.make_stale());
}

#[test]
fn types_are_open_where_one_was_not_declared() {
    let int4 = 23u32.to_be_bytes();
    for (text, types, open) in [
        ("select $1", &[][..], true),
        ("select $1", &int4[..], false),
        ("select $1", &[0; 4], true),
        ("select $1, $2", &int4, true),
        ("select $12", &int4, true),
        ("select $0, $a, $", &[], false),
        ("select 1", &[], false),
        ("select $99999999999999999999", &int4, true),
    ] {
        assert_eq!(Statement::new(text.as_bytes(), types, Effects::NONE).leaves_types_open(), open, "{text}");
    }
}

#[test]
fn names_of_a_statement_that_is_replaced_mean_the_new_one() {
    let (mut names, mut server) = (ClientNames::default(), ServerNames::default());
    let [a, b, c] = ["a", "b", "c"].map(statement);
    for (name, of) in [(b"s", &a), (b"t", &b), (b"u", &a)] {
        names.parse(name, Arc::clone(of), None);
        names.settle();
    }
    let ids = |names: &ClientNames| [b"s", b"t", b"u"].map(|name| names.lookup(name).unwrap().id);
    names.replace(a.id, &c);
    assert_eq!(ids(&names), [c.id, b.id, c.id]);
    // What is struck gives its own name back, not the one that was changed behind it.
    names.parse(b"s", Arc::clone(&a), None);
    names.parse(b"t", Arc::clone(&a), None);
    names.strike(1, &mut server);
    assert_eq!(ids(&names), [c.id, a.id, c.id]);
    names.strike(1, &mut server);
    assert_eq!(ids(&names), [c.id, b.id, c.id]);
}

#[test]
fn catalogue_that_moved_makes_another_statement_of_the_same_text() {
    is_another_behind(|all, _| all.catalog_moved());
}

#[test]
fn tags_say_whose_texts_may_mean_something_else() {
    let (nobody, own) = (Moved { own: false, all: false }, Moved { own: true, all: false });
    let (all, both) = (Moved { own: false, all: true }, Moved { own: true, all: true });
    for tag in [
        "CREATE TABLE\0",
        "ALTER TABLE\0",
        "DROP TYPE\0",
        "IMPORT FOREIGN SCHEMA\0",
        "DO\0",
        "REVOKE ROLE\0",
        "COMMIT PREPARED\0",
        "REASSIGN OWNED\0",
        "CREATE TABLE AS\0",
    ] {
        assert_eq!(Moved::by(tag.as_bytes(), false, false), all, "{tag}");
    }
    for tag in [
        "COMMIT\0",
        "PREPARE TRANSACTION\0",
        "ROLLBACK PREPARED\0",
        "EXPLAIN\0",
        "COPY 3\0",
        "DELETE 1\0",
        "INSERT 0 1\0",
        "SELECT 1\0",
        "ANALYZE\0",
        "GRANT\0",
        "\0",
        "",
    ] {
        assert_eq!(Moved::by(tag.as_bytes(), false, false), nobody, "{tag}");
    }
    for tag in ["CREATE TABLE\0", "CREATE TYPE\0", "SELECT 3\0", "EXPLAIN\0"] {
        assert_eq!(Moved::by(tag.as_bytes(), true, false), own, "{tag}");
        assert_eq!(Moved::by(tag.as_bytes(), false, true), all, "{tag}");
        assert_eq!(Moved::by(tag.as_bytes(), true, true), both, "{tag}");
    }
    assert_eq!(Moved::by(b"DROP TABLE\0", true, false), all);
    assert_eq!(Moved::by(b"INSERT 0 1\0", true, true), nobody);
}

#[test]
fn oldest_statement_makes_room() {
    let mut server = ServerNames::default();
    assert!(server.add(1, 2).is_empty() && server.add(2, 2).is_empty());
    assert_eq!(server.add(3, 2), [1]);
    assert!(!server.holds(1) && server.holds(3));
    assert!(server.add(2, 2).is_empty(), "it is there");
}

#[test]
fn all_beyond_a_limit_that_was_lowered_make_room() {
    let mut server = ServerNames::default();
    for id in 1..=5 {
        assert!(server.add(id, 5).is_empty());
    }
    assert_eq!(server.add(6, 2), [1, 2, 3, 4]);
    assert_eq!(server.add(5, 1), [6], "never the one itself");
    assert!(server.len() == 1 && server.holds(5));
}
