//! The manual and the samples say what the tables say.

use super::*;

/// A file of the repository.
fn repository(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What docs/config.md must say of `key`, below its heading.
fn documented(key: &Key) -> (String, String) {
    let heading = match key.section {
        Section::General => format!("### {}\n", key.name),
        section => format!("### {}.{}\n", section.path(), key.name),
    };
    let mut meaning = key.meaning.to_owned();
    if let Some(first) = meaning.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let default = key.default_toml.as_ref().map_or("not set".to_owned(), |default| format!("`{default}`"));
    let when = if key.reloadable { "reload" } else { "restart" };
    let takes = &key.takes;
    (heading, format!("\n{meaning}.\n\n- Takes {takes}.\n- Default: {default}.\n- Takes effect on {when}.\n"))
}

#[test]
fn the_manual_says_of_each_key_what_the_table_says() {
    let manual = repository("docs/config.md");
    let mut headings = 0;
    for key in keys() {
        let (heading, text) = documented(key);
        let Some((_, below)) = manual.split_once(&format!("\n{heading}")) else {
            panic!("docs/config.md lacks this:\n{heading}{text}");
        };
        assert!(below.starts_with(&text), "docs/config.md should say:\n{heading}{text}");
        headings += 1;
    }
    assert_eq!(
        manual.matches("\n### ").count(),
        headings,
        "docs/config.md has a heading of a key that is none"
    );
}

#[test]
fn the_manual_lists_what_takes_a_restart() {
    let manual = repository("docs/operations.md");
    let line = manual.lines().find(|line| line.contains("need a restart")).expect("the line");
    for key in keys().iter().filter(|key| !key.reloadable) {
        let group = key.name.split('_').next().unwrap_or_default();
        let named = [key.name.to_owned(), format!("{group}_*"), format!("{group}_socket_*")];
        assert!(named.iter().any(|name| line.contains(&format!("`{name}`"))), "{} in: {line}", key.name);
    }
}

#[test]
fn the_manual_lists_what_of_pgbouncer_has_no_effect() {
    let manual = repository("docs/config.md");
    for (place, name, because) in ignored::all() {
        let row = format!("| {place} | {name} | {because} |");
        assert!(manual.contains(&row), "docs/config.md lacks this:\n{row}");
    }
}

/// The settings of the sample, made or not: section, name, value, whether it is made.
fn sample_settings(sample: &str) -> Vec<(Section, String, String, bool)> {
    let mut section = Section::General;
    let mut found = Vec::new();
    for line in sample.lines().filter(|line| !line.is_empty() && !line.starts_with("# ") && *line != "#") {
        let made = !line.starts_with('#');
        let line = line.trim_start_matches('#');
        if let Some(name) = line.strip_prefix('[') {
            section = match name.split(['.', ']']).next() {
                Some("general") => Section::General,
                Some("databases") => Section::Database,
                Some("peers") => Section::Peer,
                Some("users") if name.contains(".coalesce") => Section::UserCoalesce,
                Some("users") => Section::User,
                Some("policy") => Section::Policy,
                Some("coalesce") if name.contains(".tables.") => Section::CoalesceTable,
                Some("coalesce") => Section::Coalesce,
                other => panic!("the sample has section {other:?}"),
            };
        } else if let Some((name, value)) = line.split_once(" = ") {
            found.push((section, name.to_owned(), value.to_owned(), made));
        } else {
            panic!("neither setting nor section nor comment: {line}");
        }
    }
    found
}

#[test]
fn the_sample_has_every_key_with_its_default() {
    let settings = sample_settings(&repository("config/pgsluice.toml"));
    let of = |key: &&Key| {
        settings.iter().find(|(section, name, ..)| (*section, name.as_str()) == (key.section, key.name))
    };
    for key in keys() {
        let Some((_, _, value, made)) = of(&key) else {
            panic!("config/pgsluice.toml lacks {} in [{}]", key.name, key.section.path());
        };
        if let (false, Some(default)) = (made, &key.default_toml) {
            assert_eq!(value, default, "{} in [{}] of config/pgsluice.toml", key.name, key.section.path());
        }
    }
    assert_eq!(settings.len(), keys().len(), "config/pgsluice.toml has a key twice, or one that is none");
}

#[test]
fn the_sample_is_understood_with_every_setting_made() {
    let sample = repository("config/pgsluice.toml");
    let made = sample.lines().map(|line| match line.strip_prefix('#') {
        Some(setting) if !setting.is_empty() && !setting.starts_with(' ') => setting,
        _ => line,
    });
    let text = made.collect::<Vec<_>>().join("\n");
    let ((), draft) = with_draft(|draft, _| toml::parse(draft, &text));
    assert_eq!(draft.problems, []);
    let sections = ["databases.*", "peers.2", "users.reporting"];
    assert_eq!(draft.set.keys().filter(|key| !sections.contains(&key.as_str())).count(), keys().len());
}

#[test]
fn the_samples_load() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    for name in ["pgsluice.toml", "minimal.toml"] {
        let loaded = read(&dir.join(name)).unwrap_or_else(|problems| panic!("{problems:#?}"));
        assert_eq!(loaded.settings.general.listen_port, 6432);
        assert!(loaded.settings.fallback.is_some());
        let says: Vec<&str> = loaded.notices.iter().map(|notice| notice.key.as_str()).collect();
        assert_eq!(says, ["auth_file"], "the sample userlist names nobody, which is said");
    }
}

#[test]
fn the_userlist_samples_lines_are_users_once_made() {
    let sample = repository("config/userlist.txt");
    let lines =
        sample.lines().filter_map(|line| line.strip_prefix("; ")).filter(|line| line.starts_with('"'));
    let text =
        lines.collect::<Vec<_>>().join("\n").replace("SCRAM-SHA-256$4096:salt$StoredKey:ServerKey", VERIFIER);
    let (users, draft) = with_draft(|draft, file| userlist::parse(draft, file, &text));
    assert_eq!((users.len(), draft.problems), (3, vec![]));
}
