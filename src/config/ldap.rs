//! A directory's options: PostgreSQL's, after the method `ldap` in `auth_hba_file` and in `auth_ldap_options`.
//!
//! Owns: which there are, which exclude each other, the parts of `ldapurl`. Never: a directory.

use super::check::is_host;
use super::hba::{Token, tokens};
use super::value::{shorten, without_user};
use crate::auth::ldap::USERNAME;
use crate::settings::{Ldap, LdapEncryption, LdapName, LdapScope, Secret};
use crate::wire::ldap::{Filter, unescaped};

/// Ports of `ldap` and `ldaps`.
const PORTS: (u16, u16) = (389, 636);

/// The option that is a password, and the one that people write one into.
const PASSWORD: &str = "ldapbindpasswd";
const URL: &str = "ldapurl";

/// Options as they were written. `None`: not given.
#[derive(Default)]
struct Given {
    server: Option<String>,
    port: Option<u16>,
    ldaps: Option<bool>,
    start_tls: bool,
    prefix: Option<String>,
    suffix: Option<String>,
    base: Option<String>,
    bind_dn: Option<String>,
    bind_password: Option<String>,
    attribute: Option<String>,
    filter: Option<String>,
    scope: Option<LdapScope>,
    url: bool,
    /// The password was the last of them.
    after_password: bool,
}

/// Options in one text.
///
/// Errors: what is wrong with them, and what would be right.
pub(super) fn parse(text: &str) -> Result<Ldap, String> {
    of_options(&tokens(text)?)
}

/// Options as the words of a line.
pub(super) fn of_options(words: &[Token]) -> Result<Ldap, String> {
    let mut given = Given::default();
    for word in words {
        if word.comma {
            return Err("a comma stands between options; put a value with commas into double quotes".into());
        }
        let (name, taken) = match word.text.split_once('=') {
            Some((name, value)) => (name, given.take(name, value)?),
            None => (&*word.text, false),
        };
        if !taken {
            return Err(not_understood(name, given.after_password));
        }
        given.after_password = name == PASSWORD;
    }
    given.understood()
}

/// The same text without the password in it, for the console.
pub(super) fn without_password(text: &str) -> String {
    let Ok(words) = tokens(text) else { return "****".into() };
    let shown = words.iter().map(|word| match word.text.split_once('=') {
        Some((PASSWORD, _)) => format!("{PASSWORD}=****"),
        Some((name, value)) if value.contains([' ', ',', '#', '"']) => {
            format!("{name}=\"{}\"", value.replace('"', "\"\""))
        }
        _ => word.text.clone(),
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// The text without its value, which may be a password, and without what follows a password, which may be more of it.
fn not_understood(name: &str, after_password: bool) -> String {
    if after_password {
        return format!(
            "the word behind {PASSWORD} is no LDAP option; remove it, or put the password into double quotes"
        );
    }
    format!("LDAP option \"{}\" is not understood; remove it", shown(name))
}

/// A word for messages. Wherever they stand, and however they are mistyped, options that hold passwords are not shown.
pub(super) fn shown(word: &str) -> String {
    let is = |name: &&str| word.get(..name.len()).is_some_and(|begins| begins.eq_ignore_ascii_case(name));
    [PASSWORD, URL].iter().find(|name| is(name)).map_or_else(|| shorten(word), |name| format!("{name}..."))
}

impl Given {
    /// False: there is no such option.
    fn take(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let text = || Some(value.to_owned());
        let found = shorten(value);
        match name {
            "ldapserver" => self.server = text(),
            "ldapport" => self.port = Some(port(value)?),
            "ldapscheme" => {
                self.ldaps = Some(match value {
                    "ldap" => false,
                    "ldaps" => true,
                    _ => return Err(format!("found ldapscheme \"{found}\"; expected ldap or ldaps")),
                });
            }
            "ldaptls" => {
                self.start_tls = match value {
                    "1" => true,
                    "0" => false,
                    _ => return Err(format!("found ldaptls \"{found}\"; expected 0 or 1")),
                };
            }
            "ldapprefix" => self.prefix = text(),
            "ldapsuffix" => self.suffix = text(),
            "ldapbasedn" => self.base = text(),
            "ldapbinddn" => self.bind_dn = text(),
            PASSWORD => self.bind_password = text(),
            "ldapsearchattribute" => self.attribute = text(),
            "ldapsearchfilter" => self.filter = text(),
            URL => self.take_url(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// `ldap[s]://host[:port]/base[?attribute[?scope[?filter]]]` (RFC 4516, as far as PostgreSQL takes it).
    fn take_url(&mut self, url: &str) -> Result<(), String> {
        let form = || {
            format!(
                "found ldapurl \"{}\"; expected ldap[s]://HOST[:PORT]/BASEDN[?ATTRIBUTE[?SCOPE[?FILTER]]]",
                shorten(without_user(url))
            )
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(form)?;
        self.ldaps = Some(match scheme {
            "ldap" => false,
            "ldaps" => true,
            _ => return Err(form()),
        });
        let (place, rest) = rest.split_once('/').unwrap_or((rest, ""));
        if place.contains('@') {
            return Err(format!("ldapurl names a user; write ldapbinddn and {PASSWORD} instead"));
        }
        let (host, number) = match place.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
            Some((v6, number)) => (v6, number.strip_prefix(':')),
            None => place.split_once(':').map_or((place, None), |(host, number)| (host, Some(number))),
        };
        if host.is_empty() {
            return Err(form());
        }
        self.server = Some(host.to_owned());
        // A slash may stand in the password of a user.
        let told = |why| if without_user(url) == url { why } else { form() };
        self.port = number.map(port).transpose().map_err(told)?;
        let mut parts = rest.splitn(4, '?').map(|part| decoded(part).ok_or_else(form));
        let mut next = || parts.next().transpose().map(|part| part.filter(|part| !part.is_empty()));
        self.base = next()?;
        self.attribute = next()?;
        self.scope = match next()?.as_deref() {
            None => None,
            Some("base") => Some(LdapScope::Base),
            Some("one") => Some(LdapScope::One),
            Some("sub") => Some(LdapScope::Sub),
            Some(_) => return Err(form()),
        };
        self.filter = next()?;
        self.url = true;
        Ok(())
    }

    fn understood(self) -> Result<Ldap, String> {
        let servers: Vec<String> =
            self.server.iter().flat_map(|list| list.split_whitespace()).map(str::to_owned).collect();
        if servers.is_empty() {
            return Err(
                "ldap needs a directory; write ldapserver=HOST, or ldapurl=ldaps://HOST/BASEDN".into()
            );
        }
        if let Some(odd) = servers.iter().find(|server| !is_host(server)) {
            let odd = shorten(without_user(odd));
            return Err(format!(
                "found LDAP server \"{odd}\"; expected names or addresses with blanks between"
            ));
        }
        let encryption = match (self.ldaps.unwrap_or(false), self.start_tls) {
            (true, true) => return Err("ldaptls=1 is for the scheme ldap; ldaps has TLS: remove it".into()),
            (true, false) => LdapEncryption::Tls,
            (false, true) => LdapEncryption::StartTls,
            (false, false) => LdapEncryption::Clear,
        };
        let port = self.port.unwrap_or(if encryption == LdapEncryption::Tls { PORTS.1 } else { PORTS.0 });
        Ok(Ldap { servers, port, encryption, name: self.name()? })
    }

    fn name(self) -> Result<LdapName, String> {
        let searches = self.base.is_some()
            || self.bind_dn.is_some()
            || self.bind_password.is_some()
            || self.attribute.is_some()
            || self.filter.is_some()
            || self.url;
        if self.prefix.is_some() || self.suffix.is_some() {
            if searches {
                return Err(
                    "ldapprefix and ldapsuffix make the name, ldapbasedn, ldapbinddn, ldapbindpasswd, \
                            ldapsearchattribute, ldapsearchfilter and ldapurl search for it; remove one kind"
                        .into(),
                );
            }
            return Ok(LdapName::Made {
                prefix: self.prefix.unwrap_or_default(),
                suffix: self.suffix.unwrap_or_default(),
            });
        }
        let Some(base) = self.base else {
            return Err("ldap needs ldapprefix or ldapsuffix, or ldapbasedn; write one of them".into());
        };
        let filter_text = match (self.attribute, self.filter) {
            (Some(_), Some(_)) => {
                return Err("ldapsearchattribute and ldapsearchfilter say the same; remove one".into());
            }
            (attribute, None) => format!("({}={USERNAME})", attribute.as_deref().unwrap_or("uid")),
            (None, Some(filter)) => filter,
        };
        Filter::parse(&filter_text)
            .map_err(|why| format!("the search filter \"{}\" {why}", shorten(&filter_text)))?;
        if !filter_text.contains(USERNAME) {
            return Err(format!(
                "the search filter finds the same entry for everybody; write {USERNAME} into it"
            ));
        }
        Ok(LdapName::Searched {
            base,
            scope: self.scope.unwrap_or(LdapScope::Sub),
            filter: filter_text,
            bind_dn: self.bind_dn.unwrap_or_default(),
            bind_password: Secret::Plain(self.bind_password.unwrap_or_default()),
        })
    }
}

fn port(text: &str) -> Result<u16, String> {
    let number = text.parse::<u16>().ok().filter(|port| *port > 0);
    number.ok_or_else(|| format!("found LDAP port \"{}\"; expected a number from 1 to 65535", shorten(text)))
}

/// `text` with its `%XX` decoded; `None`: one is malformed, or the result is not UTF-8.
fn decoded(text: &str) -> Option<String> {
    String::from_utf8(unescaped(text, b'%')?).ok().filter(|text| !text.contains('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn searched(text: &str) -> (Ldap, String) {
        let ldap = parse(text).unwrap();
        let LdapName::Searched { filter, .. } = &ldap.name else { panic!("{ldap:?}") };
        (ldap.clone(), filter.clone())
    }

    #[test]
    fn a_name_is_made() {
        let ldap = parse(
            r#"ldapserver="a.example b.example" ldapprefix="uid=" ldapsuffix=", ou=people,dc=x" ldaptls=1"#,
        );
        let ldap = ldap.unwrap();
        assert_eq!(ldap.servers, ["a.example", "b.example"]);
        assert_eq!((ldap.port, ldap.encryption), (389, LdapEncryption::StartTls));
        assert_eq!(ldap.name, LdapName::Made { prefix: "uid=".into(), suffix: ", ou=people,dc=x".into() });
    }

    #[test]
    fn a_name_is_searched_for() {
        let (ldap, filter) = searched(r#"ldapserver=h ldapscheme=ldaps ldapbasedn="dc=x,dc=y""#);
        assert_eq!(
            (ldap.port, ldap.encryption, filter.as_str()),
            (636, LdapEncryption::Tls, "(uid=$username)")
        );
        let (_, filter) = searched(r#"ldapserver=h ldapbasedn=dc=x ldapsearchattribute=cn"#);
        assert_eq!(filter, "(cn=$username)");
        let (_, filter) =
            searched(r#"ldapserver=h ldapbasedn=dc=x ldapsearchfilter="(|(uid=$username)(mail=$username))""#);
        assert_eq!(filter, "(|(uid=$username)(mail=$username))");
    }

    #[test]
    fn an_url_says_all_of_it() {
        let (ldap, filter) = searched(r#"ldapurl="ldap://h:1389/dc=x%2Cdc=y?mail?one""#);
        assert_eq!((ldap.servers, ldap.port), (vec!["h".to_owned()], 1389));
        assert_eq!(filter, "(mail=$username)");
        let LdapName::Searched { base, scope, .. } = ldap.name else { unreachable!() };
        assert_eq!((base.as_str(), scope), ("dc=x,dc=y", LdapScope::One));
        let (ldap, filter) = searched(r#"ldapurl="ldaps://[::1]/dc=x???(&(a=b)(c=$username))""#);
        assert_eq!(
            (ldap.servers, ldap.port, filter.as_str()),
            (vec!["::1".to_owned()], 636, "(&(a=b)(c=$username))")
        );
    }

    #[test]
    fn what_cannot_be_is_told() {
        for (text, told) in [
            ("", "needs a directory"),
            ("ldapserver=h", "needs ldapprefix"),
            ("ldapprefix=a", "needs a directory"),
            ("ldapserver=h ldapprefix=a ldapbasedn=b", "remove one kind"),
            ("ldapserver=h ldapsuffix=a ldapbinddn=b", "remove one kind"),
            ("ldapserver=h ldapsuffix=a ldapbindpasswd=b", "remove one kind"),
            ("ldapserver=h ldapprefix=a ldapsearchattribute=b", "remove one kind"),
            ("ldapserver=h ldapprefix=a ldapsearchfilter=(a=$username)", "remove one kind"),
            (
                "ldapserver=h ldapbasedn=b ldapsearchattribute=a ldapsearchfilter=(a=$username)",
                "say the same",
            ),
            ("ldapserver=h ldapbasedn=b ldapsearchfilter=(a=b)", "the same entry for everybody"),
            ("ldapserver=h ldapbasedn=b ldapsearchfilter=(a=$username", "search filter"),
            ("ldapserver=h ldapport=0 ldapprefix=a", "from 1 to 65535"),
            ("ldapserver=h ldapscheme=ldaps ldaptls=1 ldapprefix=a", "remove it"),
            ("ldapserver=h ldapscheme=x ldapprefix=a", "expected ldap or ldaps"),
            ("ldapserver=h ldaptls=yes ldapprefix=a", "expected 0 or 1"),
            ("ldapserver=h ldapprefix=a secret=b", "\"secret\" is not understood"),
            ("ldapserver=h ldapprefix=a secret", "\"secret\" is not understood"),
            ("ldapserver=h ldapsuffix=dc=a,dc=b", "double quotes"),
            ("ldapurl=http://h/dc=x", "expected ldap[s]://"),
            ("ldapurl=ldap:///dc=x", "expected ldap[s]://"),
            ("ldapurl=ldap://h/dc=x?uid?deep", "expected ldap[s]://"),
            ("ldapurl=ldap://h/dc=%zz", "expected ldap[s]://"),
            ("ldapurl=ldap://h:x/dc=x", "from 1 to 65535"),
            ("ldapurl=ldap://u@h/dc=x", "names a user"),
            ("ldapserver=ldap://h ldapprefix=a", "expected names or addresses"),
            (r#"ldapserver="h ::1 h:1" ldapprefix=a"#, "LDAP server \"h:1\""),
            ("ldapserver=h ldapbindpasswd=a ldapsever=b", "behind ldapbindpasswd"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let text = r#"ldapserver=h ldapbasedn="dc=x, dc=y" ldapbinddn=cn=pg ldapbindpasswd="open sesame""#;
        let shown = without_password(text);
        assert_eq!(shown, r#"ldapserver=h ldapbasedn="dc=x, dc=y" ldapbinddn=cn=pg ldapbindpasswd=****"#);
        assert!(!format!("{:?}", parse(text).unwrap()).contains("sesame"));
        assert_eq!(without_password("ldapbindpasswd=\"open"), "****");
        for mistaken in [
            "ldapserver=h ldapbindpasswd=open sesame",
            "ldapserver=h ldapbindpasswd=open se=same",
            "ldapserver=h ldapbindpasswd= sesame",
            "ldapserver=h ldapbindpasswd:sesame",
            "ldapserver=h LDAPBINDPASSWD=sesame",
            "ldapserver=h ldapbindpasswd=open,sesame",
            "ldapserver=h ldapbindpasswd=\"sesame",
            "ldapurl=ldap://u:sesame@h/dc=x",
            "ldapurl=ldap://u:se/same@h/dc=x",
            "ldapurl=ldap//u:sesame@h/dc=x",
            "ldapserver=ldap://u:sesame@h/dc=x ldapprefix=a",
        ] {
            let error = parse(mistaken).unwrap_err();
            assert!(!error.contains("sesame") && !error.contains("\"se"), "{mistaken}: {error}");
        }
    }
}
