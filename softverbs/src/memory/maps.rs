//! What is mapped where, as the kernel tells.

use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::Advice;

use super::lasting::{Lasting, Medium, WRITES_BACK};
use super::pages::page_size;

/// One line of `/proc/self/maps`.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    range: Range<usize>,
    /// Such as `rw-s`.
    permissions: [u8; 4],
    /// Not so of anonymous memory.
    has_inode: bool,
    path: &'a [u8],
}

/// `TMPFS_MAGIC`, `linux/magic.h`.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

impl<'a> Mapping<'a> {
    fn parse(line: &'a [u8]) -> Option<Mapping<'a>> {
        let (start, line) = hex(line, b'-')?;
        let (end, line) = hex(line, b' ')?;
        let (permissions, line) = word(line);
        let (_offset, line) = word(line);
        let (_device, line) = word(line);
        let (inode, line) = word(line);
        Some(Mapping {
            range: start..end,
            permissions: permissions.try_into().ok()?,
            has_inode: inode != b"0",
            path: line.trim_ascii_start(),
        })
    }

    fn is_shared(&self) -> bool {
        self.permissions[3] == b's'
    }

    fn allows(&self, write: bool) -> bool {
        self.permissions[0] == b'r' && (!write || self.permissions[1] == b'w')
    }

    /// What the content lasts in: something that has a name, to be found by later.
    fn medium(&self) -> Option<Medium> {
        if !self.is_shared() || !self.path.starts_with(b"/") {
            return None;
        }
        let path = unescape(self.path);
        let stat = rustix::fs::stat(path.as_slice()).ok()?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let is_tmpfs = |stat: rustix::fs::StatFs| stat.f_type == TMPFS_MAGIC;
                let tmpfs = rustix::fs::statfs(path.as_slice()).is_ok_and(is_tmpfs);
                Some(if tmpfs { Medium::Tmpfs } else { Medium::File })
            }
            FileType::CharacterDevice if WRITES_BACK && path.starts_with(b"/dev/dax") => {
                Some(Medium::Memory)
            }
            _ => None,
        }
    }
}

fn hex(line: &[u8], end: u8) -> Option<(usize, &[u8])> {
    let mut value = 0;
    for (i, &byte) in line.iter().enumerate() {
        if byte == end {
            return Some((value, &line[i + 1..]));
        }
        value = (value << 4) | char::from(byte).to_digit(16)? as usize;
    }
    None
}

fn word(line: &[u8]) -> (&[u8], &[u8]) {
    let end = line.iter().position(|&byte| byte == b' ');
    let end = end.unwrap_or(line.len());
    (&line[..end], line.get(end + 1..).unwrap_or_default())
}

/// A newline in a path is written `\012` there. Nothing else is changed, so a path that has these
/// four characters itself is not found.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        let (byte, after) = match rest.strip_prefix(b"\\012") {
            Some(after) => (b'\n', after),
            None => (byte, after),
        };
        plain.push(byte);
        rest = after;
    }
    plain
}

/// Checks that all of the pages are there, and to be written if asked; tells which parts last.
pub fn survey(pages: Range<usize>, write: bool) -> Result<Vec<Lasting>, Errno> {
    let mut lasting: Vec<Lasting> = Vec::new();
    let mut checked = pages.start;
    let mut lines = Lines::open()?;
    while checked < pages.end {
        let line = lines.next()?.ok_or(Errno::FAULT)?;
        let mapping = Mapping::parse(line).ok_or(Errno::IO)?;
        if mapping.range.end <= checked {
            continue;
        }
        if mapping.range.start > checked || !mapping.allows(write) {
            return Err(Errno::FAULT);
        }
        let part = checked..mapping.range.end.min(pages.end);
        if mapping.has_inode {
            check_end_of_file(&part)?;
        }
        checked = part.end;

        let Some(medium) = mapping.medium() else {
            continue;
        };
        match lasting.last_mut() {
            Some(last) if last.range.end == part.start && last.medium == medium => {
                last.range.end = part.end;
            }
            _ => {
                lasting.try_reserve(1).map_err(|_| Errno::NOMEM)?;
                lasting.push(Lasting {
                    range: part,
                    medium,
                });
            }
        }
    }
    Ok(lasting)
}

/// A mapping can be longer than its file. If it is here, the last page of the part is not
/// there.
fn check_end_of_file(part: &Range<usize>) -> Result<(), Errno> {
    let page = part.end - page_size();
    // SAFETY: a page that can be read is made present, which changes no content.
    let populated =
        unsafe { rustix::mm::madvise(page as *mut _, page_size(), Advice::LinuxPopulateRead) };
    match populated {
        Err(Errno::FAULT) => Err(Errno::FAULT),
        // What a kernel older than 5.14, or a device's mapping, can't tell isn't held against
        // it.
        _ => Ok(()),
    }
}

/// The lines of `/proc/self/maps`, by address.
struct Lines {
    file: OwnedFd,
    buffer: Vec<u8>,
    /// What of the buffer has been read and not yet given.
    filled: Range<usize>,
}

impl Lines {
    fn open() -> Result<Lines, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Lines::of(rustix::fs::open(c"/proc/self/maps", flags, Mode::empty())?)
    }

    fn of(file: OwnedFd) -> Result<Lines, Errno> {
        let mut lines = Lines {
            file,
            buffer: Vec::new(),
            filled: 0..0,
        };
        lines.grow()?;
        Ok(lines)
    }

    fn grow(&mut self) -> Result<(), Errno> {
        let more = self.buffer.len().max(page_size());
        self.buffer
            .try_reserve_exact(more)
            .map_err(|_| Errno::NOMEM)?;
        self.buffer.resize(self.buffer.len() + more, 0);
        Ok(())
    }

    /// The next line without its end; none after the last.
    fn next(&mut self) -> Result<Option<&[u8]>, Errno> {
        let mut searched = 0;
        loop {
            let unsearched = &self.buffer[self.filled.start + searched..self.filled.end];
            if let Some(length) = unsearched.iter().position(|&byte| byte == b'\n') {
                let start = self.filled.start;
                let end = start + searched + length;
                self.filled.start = end + 1;
                return Ok(Some(&self.buffer[start..end]));
            }
            searched = self.filled.len();
            self.buffer.copy_within(self.filled.clone(), 0);
            self.filled = 0..searched;
            if searched == self.buffer.len() {
                self.grow()?;
            }
            let room = &mut self.buffer[searched..];
            match rustix::io::retry_on_intr(|| rustix::io::read(&self.file, &mut *room))? {
                0 => return Ok(None),
                read => self.filled.end += read,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed() {
        let line = b"7f0c2a400000-7f0c2a428000 r-xs 00026000 fe:01 1234    /a b/c";
        let mapping = Mapping::parse(line).expect("a mapping");
        assert_eq!(mapping.range, 0x7f0c_2a40_0000..0x7f0c_2a42_8000);
        assert_eq!(&mapping.permissions, b"r-xs");
        assert!(mapping.has_inode && mapping.is_shared());
        assert!(mapping.allows(false) && !mapping.allows(true));
        assert_eq!(mapping.path, b"/a b/c");

        let mapping = Mapping::parse(b"1000-2000 -w-p 00000000 00:00 0 ").expect("a mapping");
        assert!(!mapping.has_inode && !mapping.is_shared());
        assert!(!mapping.allows(false) && !mapping.allows(true));
        assert_eq!(mapping.path, b"");

        for line in [&b""[..], b"1000", b"1000-", b"x-y rw-p", b"1-2 rw"] {
            assert_eq!(Mapping::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn newlines_in_paths_are_unescaped() {
        assert_eq!(unescape(b"/a\\012b\\01\\012"), b"/a\nb\\01\n");
    }

    #[test]
    fn long_lines_are_read_whole() {
        let file = rustix::fs::memfd_create("lines", rustix::fs::MemfdFlags::CLOEXEC);
        let file = file.expect("memfd");
        let lengths = [3, 0, 20_000, 1, page_size(), page_size() - 1, 50_000];
        let text: Vec<u8> = (b'a'..)
            .zip(lengths)
            .flat_map(|(byte, length)| {
                let mut line = vec![byte; length];
                line.push(b'\n');
                line
            })
            .collect();
        // What has no end is no line.
        let text = [text, b"rest".to_vec()].concat();
        assert_eq!(rustix::io::pwrite(&file, &text, 0), Ok(text.len()));
        let mut lines = Lines::of(file).expect("lines");
        for (byte, length) in (b'a'..).zip(lengths) {
            let line = lines.next().expect("read").expect("a line");
            assert_eq!(line.len(), length, "line {}", char::from(byte));
            assert!(line.iter().all(|&b| b == byte));
        }
        assert_eq!(lines.next(), Ok(None));
    }
}
