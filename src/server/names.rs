//! `hosts_file`: names that are known without asking the system. Never: keeps anything; the file is read at each look.

use std::net::IpAddr;
use std::path::Path;

use tokio::io::AsyncReadExt;

use crate::limits::HOSTS_BYTES_MAX;

/// The addresses that `file` has for `name`; none, if it can't be read.
pub(super) async fn known(file: Option<&Path>, name: &str) -> Vec<IpAddr> {
    let Some(file) = file else { return Vec::new() };
    read(file).await.map(|text| addresses(&text, name)).unwrap_or_default()
}

async fn read(file: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    tokio::fs::File::open(file).await?.take(HOSTS_BYTES_MAX).read_to_string(&mut text).await?;
    Ok(text)
}

/// Lines of an address and its names, `#` comments, as in `/etc/hosts`.
pub fn addresses(text: &str, name: &str) -> Vec<IpAddr> {
    let of_line = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let ip = words.next()?.parse().ok()?;
        words.any(|own| own.eq_ignore_ascii_case(name)).then_some(ip)
    };
    text.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines() {
        let text =
            "# none\n127.0.0.1 a.test b.test # c.test\n\n::1\tA.TEST\nnonsense a.test\n127.0.0.2 b.test.\n";
        for (name, found) in [
            ("a.test", &["127.0.0.1", "::1"][..]),
            ("b.test", &["127.0.0.1"]),
            ("B.Test", &["127.0.0.1"]),
            ("c.test", &[]),
            ("127.0.0.1", &[]),
            ("", &[]),
        ] {
            let found: Vec<IpAddr> = found.iter().map(|ip| ip.parse().unwrap()).collect();
            assert_eq!(addresses(text, name), found, "{name}");
        }
    }

    proptest! {
        #[test]
        fn a_name_has_the_addresses_of_its_lines_in_their_order(
            lines in proptest::collection::vec(
                (any::<IpAddr>(), proptest::collection::vec("[ab]{1,2}", 0..4), "[ ab#]{0,4}"), 0..8),
            name in "[ab]{1,2}",
        ) {
            let lines: Vec<(IpAddr, Vec<String>, String)> = lines;
            let text: String =
                lines.iter().map(|(ip, names, behind)| format!("{ip}\t{} #{behind}\r\n", names.join(" "))).collect();
            let its: Vec<IpAddr> =
                lines.iter().filter(|(_, names, _)| names.contains(&name)).map(|(ip, ..)| *ip).collect();
            prop_assert_eq!(addresses(&text, &name), its);
        }

        #[test]
        fn any_text_is_read(text in any::<String>(), name in any::<String>()) {
            let _ = addresses(&text, &name);
        }
    }
}
