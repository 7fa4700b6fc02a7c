//! What a program file is, as far as preloading goes: the launcher asks before it runs one, since the
//! dynamic loader says nothing where it does not preload.

use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags, accessat, getxattr, statvfs};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{env, fmt};

/// Why a library can't be preloaded into a program.
#[derive(Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It has no dynamic loader.
    Static,
    /// It is of another word size or processor than the library.
    OtherMachine,
    /// The loader leaves preloaded libraries out, because the program gets rights that its caller has
    /// not: from this.
    Privileged(&'static str),
}

/// What the kernel does with a `#!` line of an interpreter that is a script itself: so often.
const MOST_INTERPRETERS: usize = 5;
/// The kernel reads so much of a file to find out what it is (`BINPRM_BUF_SIZE`).
const BEGINNING: usize = 256;

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Obstacle::Static => f.write_str(
                "it is statically linked, and has no dynamic loader that could preload the library",
            ),
            Obstacle::OtherMachine => {
                write!(
                    f,
                    "it is not a program for {}, as the library is",
                    env::consts::ARCH
                )
            }
            Obstacle::Privileged(by) => write!(
                f,
                "the dynamic loader preloads no library into it, because it has {by}: run a copy \
                 without"
            ),
        }
    }
}

/// What keeps the library from being preloaded, and the file that this is about: the program, or the
/// interpreter of a script. None also where it can't be found out: running it will tell.
pub fn obstacle(name: &OsStr) -> Option<(PathBuf, Obstacle)> {
    let mut file = find(name)?;
    for _ in 0..MOST_INTERPRETERS {
        let opened = File::open(&file).ok()?;
        let mut beginning = [0; BEGINNING];
        let len = read_at(&opened, &mut beginning, 0)?;
        match interpreter(&beginning[..len]) {
            Some(interpreter) => file = interpreter,
            None => {
                let found = of_elf(&file, &opened, &beginning[..len]).or_else(|| privileged(&file));
                return found.map(|obstacle| (file, obstacle));
            }
        }
    }
    None
}

/// The file that execvp(3) runs.
fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let files = env::split_paths(&path).map(|dir| dir.join(name));
    let runs = |file: &PathBuf| {
        let may = accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS);
        may.is_ok() && fs::metadata(file).is_ok_and(|found| found.is_file())
    };
    files.into_iter().find(runs)
}

/// Reads as much as there is, at most all of the buffer.
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> Option<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match file.read_at(&mut buffer[len..], at.checked_add(len as u64)?) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    Some(len)
}

/// What a script names in its first line.
fn interpreter(beginning: &[u8]) -> Option<PathBuf> {
    let line = beginning.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    let word = |byte: &u8| matches!(byte, b' ' | b'\t');
    let path = line.split(word).find(|word| !word.is_empty())?;
    Some(OsString::from_vec(path.to_vec()).into())
}

/// Fields of the ELF headers of both word sizes: elf(5).
struct Layout {
    class: u8,
    /// Where the table of program headers is said to be, how long one is, and how many.
    phoff: usize,
    phentsize: usize,
    phnum: usize,
}
const LAYOUT: Layout = if cfg!(target_pointer_width = "64") {
    Layout {
        class: 2,
        phoff: 32,
        phentsize: 54,
        phnum: 56,
    }
} else {
    Layout {
        class: 1,
        phoff: 28,
        phentsize: 42,
        phnum: 44,
    }
};
const DATA: u8 = if cfg!(target_endian = "little") { 1 } else { 2 };
const PT_INTERP: u32 = 3;

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn of_elf(path: &Path, file: &File, header: &[u8]) -> Option<Obstacle> {
    // Something else, which the kernel may know (binfmt_misc) or the shell.
    if !header.starts_with(b"\x7fELF") {
        return None;
    }
    const CLASS: usize = 4;
    if header.get(CLASS..CLASS + 2)? != [LAYOUT.class, DATA] || !is_this_machine(header)? {
        return Some(Obstacle::OtherMachine);
    }
    // The loader can be run as a program, and preloads then, too.
    let name = path.file_name()?.as_bytes();
    if name.starts_with(b"ld-") || name.starts_with(b"ld.so") {
        return None;
    }
    let at = usize::from_ne_bytes(number(header, LAYOUT.phoff)?) as u64;
    let size = u16::from_ne_bytes(number(header, LAYOUT.phentsize)?);
    let count = u16::from_ne_bytes(number(header, LAYOUT.phnum)?);
    for i in 0..count {
        let at = at.checked_add(u64::from(size) * u64::from(i))?;
        let mut kind = [0; 4];
        if read_at(file, &mut kind, at)? == kind.len() && u32::from_ne_bytes(kind) == PT_INTERP {
            return None;
        }
    }
    Some(Obstacle::Static)
}

/// Whether it is for the processor that this program is for.
fn is_this_machine(header: &[u8]) -> Option<bool> {
    const MACHINE: usize = 18;
    let mut own = [0; MACHINE + 2];
    File::open("/proc/self/exe")
        .ok()?
        .read_exact(&mut own)
        .ok()?;
    Some(number::<2>(header, MACHINE)? == number(&own, MACHINE)?)
}

/// Whether the kernel gives the program rights that its caller has not, of which the loader is told
/// (`AT_SECURE`, getauxval(3)): it then preloads nothing that is named with its path.
fn privileged(file: &Path) -> Option<Obstacle> {
    let found = fs::metadata(file).ok()?;
    // Neither has the kernel give any.
    let mounted = statvfs(file).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOSUID));
    if mounted || rustix::thread::no_new_privs().unwrap_or(false) {
        return None;
    }
    let capabilities = getxattr(file, "security.capability", &mut [0_u8; 64]).is_ok();
    let gains = Rights {
        mode: found.mode(),
        owner: (found.uid(), found.gid()),
        capabilities,
    };
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let by = gains.over((uid.as_raw(), gid.as_raw()))?;
    Some(Obstacle::Privileged(by))
}

/// What a file gives to who runs it.
struct Rights {
    mode: u32,
    /// User and group.
    owner: (u32, u32),
    capabilities: bool,
}

impl Rights {
    /// By what it gives more than this user and group have.
    fn over(&self, (uid, gid): (u32, u32)) -> Option<&'static str> {
        const SETUID: u32 = 0o4000;
        const SETGID: u32 = 0o2000;
        /// Without it the bit means something else.
        const GROUP_RUNS: u32 = 0o10;
        const ROOT: u32 = 0;
        let mode = self.mode;
        if mode & SETUID != 0 && self.owner.0 != uid {
            Some("the set-user-ID bit")
        } else if mode & (SETGID | GROUP_RUNS) == SETGID | GROUP_RUNS && self.owner.1 != gid {
            Some("the set-group-ID bit")
        } else if self.capabilities && uid != ROOT {
            // Root has them anyway.
            Some("file capabilities")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_names_its_interpreter() {
        let names = [
            (&b"#!/bin/sh\necho"[..], Some("/bin/sh")),
            (b"#! \t/usr/bin/env python3\n", Some("/usr/bin/env")),
            (b"#!/bin/sh", Some("/bin/sh")),
            (b"#!\n/bin/sh", None),
            (b"# !/bin/sh\n", None),
            (b"", None),
        ];
        for (beginning, expected) in names {
            assert_eq!(interpreter(beginning).as_deref(), expected.map(Path::new));
        }
    }

    #[test]
    fn rights_count_that_the_caller_has_not() {
        const USER: (u32, u32) = (1000, 100);
        let gains = |mode, owner, capabilities, by| {
            let rights = Rights {
                mode,
                owner,
                capabilities,
            };
            rights.over(by)
        };
        let uid = Some("the set-user-ID bit");
        let gid = Some("the set-group-ID bit");
        for (mode, owner, capabilities, by, expected) in [
            (0o755, (0, 0), false, USER, None),
            (0o4755, (0, 0), false, USER, uid),
            (0o4755, (0, 0), false, (0, 0), None),
            (0o4755, (65534, 0), false, (0, 0), uid),
            (0o4755, USER, false, USER, None),
            (0o2755, (0, 0), false, USER, gid),
            (0o2745, (0, 0), false, USER, None),
            (0o2755, (1000, 100), false, USER, None),
            (0o755, (0, 0), true, USER, Some("file capabilities")),
            (0o755, (0, 0), true, (0, 0), None),
        ] {
            let seen = gains(mode, owner, capabilities, by);
            assert_eq!(
                seen, expected,
                "{mode:o} of {owner:?}, {capabilities}, run by {by:?}"
            );
        }
    }
}
