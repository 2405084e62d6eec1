//! Files that the configuration names.
//!
//! Owns: that reading or writing one always ends: regular files only, read up to a bound, and opened without waiting for the other end of
//! a FIFO. Never: knows what they hold.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::libc::O_NONBLOCK;

fn no_file() -> io::Error {
    io::Error::other("not a regular file")
}

/// Opens it to read.
///
/// # Errors
/// What the operating system says, or that it is no regular file.
pub fn open(file: &Path) -> io::Result<File> {
    // To open a device may do something.
    if !file.metadata()?.is_file() {
        return Err(no_file());
    }
    opened(OpenOptions::new().read(true), file)
}

fn opened(how: &mut OpenOptions, file: &Path) -> io::Result<File> {
    // It may have become a FIFO meanwhile.
    let handle = how.custom_flags(O_NONBLOCK).open(file)?;
    if handle.metadata()?.is_file() { Ok(handle) } else { Err(no_file()) }
}

/// What it holds, as far as one byte more than `bytes_max`, which tells that there is more.
///
/// # Errors
/// As [`open`].
pub fn read(file: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(file)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// As [`read`]; one that holds more is an error.
///
/// # Errors
/// As [`open`], or that it is too large.
pub fn read_whole(file: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let bytes = read(file, bytes_max)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("larger than {} MB", bytes_max >> 20)));
    }
    Ok(bytes)
}

/// Puts `text` in place of what it holds.
///
/// # Errors
/// As [`open`].
pub fn write(file: &Path, text: &str) -> io::Result<()> {
    let mut handle = opened(OpenOptions::new().write(true).create(true).truncate(false), file)?;
    handle.set_len(0)?;
    handle.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// None of these calls would come back from a FIFO otherwise, nor the second from a device without an end.
    #[test]
    fn what_is_no_regular_file_is_told_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for file in [&fifo, Path::new("/dev/zero"), dir.path()] {
            assert_eq!(read(file, 8).unwrap_err().to_string(), "not a regular file", "{}", file.display());
        }
        assert!(opened(OpenOptions::new().read(true), &fifo).is_err());
        for file in [&fifo, dir.path()] {
            assert!(write(file, "1").is_err(), "{}", file.display());
        }
        assert!(open(&dir.path().join("none")).is_err_and(|e| e.kind() == io::ErrorKind::NotFound));
    }

    #[test]
    fn a_file_is_read_up_to_its_bound_and_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        write(&file, "123456789").unwrap();
        assert_eq!(read(&file, 9).unwrap(), b"123456789");
        assert_eq!(read(&file, 7).unwrap(), b"12345678");
        assert_eq!(read_whole(&file, 9).unwrap(), b"123456789");
        assert_eq!(read_whole(&file, 8).unwrap_err().to_string(), "larger than 0 MB");
        write(&file, "1").unwrap();
        assert_eq!(read(&file, 9).unwrap(), b"1");
    }
}
