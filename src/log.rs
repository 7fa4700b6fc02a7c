//! The log: two thresholds and a function, shared by the whole process.
//!
//! Messages are formatted into a buffer on the stack, so logging never allocates,
//! and out of line, so a silent log costs its caller one comparison.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::{self, Write};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

/// How grave a message is; a lower number is graver.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Level {
    Fatal = 0,
    Error = 1,
    Warning = 2,
    Notice = 3,
    Info = 4,
    Debug = 5,
}

/// The range of a threshold: nothing at all up to everything.
pub const LEVELS: std::ops::RangeInclusive<c_int> = -1..=5;

/// `rpma_log_function` of the header, the level as a plain integer.
pub type Function = unsafe extern "C" fn(
    level: c_int,
    file_name: *const c_char,
    line_no: c_int,
    function_name: *const c_char,
    message_format: *const c_char,
    ...
);

/// A message longer than this, its newline included, is cut, unless it is of C strings and
/// for a program's own function.
const MESSAGE_MAX: usize = 1023;

static THRESHOLD: AtomicI32 = AtomicI32::new(Level::Warning as i32);
static THRESHOLD_AUX: AtomicI32 = AtomicI32::new(-1);
/// NULL stands for the function built in.
static FUNCTION: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// False once the library is unloaded, until a function is set again.
static OPEN: AtomicBool = AtomicBool::new(true);

pub fn threshold(aux: bool) -> &'static AtomicI32 {
    if aux { &THRESHOLD_AUX } else { &THRESHOLD }
}

pub fn set_function(function: Option<Function>) {
    let function = function.map_or(ptr::null_mut(), |f| f as *mut c_void);
    // Another thread that calls the function sees what the program wrote before it was set, and one
    // that finds the log open finds the function.
    FUNCTION.store(function, Ordering::Release);
    OPEN.store(true, Ordering::Release);
}

#[inline(always)]
pub fn enabled(level: Level) -> bool {
    // Relaxed: a threshold is a number that guards nothing, and every silent line asks for it.
    level as i32 <= THRESHOLD.load(Ordering::Relaxed)
}

/// What a message says of itself.
pub struct Origin {
    pub level: Level,
    pub file: &'static CStr,
    pub line: u32,
    /// The path of an item within the function.
    pub function: &'static str,
}

macro_rules! origin {
    ($level:ident) => {{
        fn here() {}
        $crate::log::Origin {
            level: $crate::log::Level::$level,
            // SAFETY: the one NUL is at the end, since no path has any.
            file: unsafe {
                ::std::ffi::CStr::from_bytes_with_nul_unchecked(concat!(file!(), "\0").as_bytes())
            },
            line: line!(),
            function: ::std::any::type_name_of_val(&here),
        }
    }};
}

/// Logs a message, formatted as by [`format!`], if its level passes the threshold.
macro_rules! log {
    ($level:ident, $($message:tt)+) => {
        if $crate::log::enabled($crate::log::Level::$level) {
            $crate::log::emit(origin!($level), format_args!($($message)+))
        }
    };
}

/// Logs two C strings, whatever bytes they have and however many, in a format of C.
macro_rules! log_strings {
    ($level:ident, $format:literal, $first:expr, $second:expr) => {
        if $crate::log::enabled($crate::log::Level::$level) {
            $crate::log::emit_strings(origin!($level), $format, [$first, $second])
        }
    };
}

#[cold]
#[inline(never)]
pub fn emit(origin: Origin, message: fmt::Arguments) {
    let mut text = Text::<{ MESSAGE_MAX + 1 }>::new();
    // An error only says that the message was cut.
    let _ = text.write_fmt(message);
    emit_strings(origin, c"%s\n", [text.as_c_str(), c""]);
}

/// `format` takes the strings, or the first of them.
#[cold]
#[inline(never)]
pub fn emit_strings(origin: Origin, format: &CStr, strings: [&CStr; 2]) {
    if !OPEN.load(Ordering::Acquire) {
        return;
    }
    let Origin {
        level,
        file,
        line,
        function,
    } = origin;
    // Of "rpma::core::mr::MrLocal::register::{{closure}}::here", "register".
    let mut path = function.rsplit("::").skip(1);
    let function = path.find(|part| !part.starts_with('{')).unwrap_or(function);
    let mut name = Text::<64>::new();
    let _ = name.write_str(function);

    let (format, [first, second]) = (format.as_ptr(), strings.map(CStr::as_ptr));
    let custom = FUNCTION.load(Ordering::Acquire);
    if custom.is_null() {
        let mut text = [0u8; MESSAGE_MAX + 1];
        // SAFETY: it is told the size of the buffer, and leaves a NUL within it; the strings
        // are as many as the format takes, or more.
        unsafe { libc::snprintf(text.as_mut_ptr().cast(), text.len(), format, first, second) };
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        emit_default(level, file, line, name.as_c_str(), text);
    } else {
        // SAFETY: a non-NULL pointer came from `set_function`; all arguments are
        // C strings that live until it returns, as many as the format takes, or more.
        unsafe {
            let custom = std::mem::transmute::<*mut c_void, Function>(custom);
            let (file, name) = (file.as_ptr(), name.as_c_str().as_ptr());
            custom(
                level as c_int,
                file,
                line as c_int,
                name,
                format,
                first,
                second,
            );
        }
    }
}

unsafe extern "C" {
    static stderr: *mut libc::FILE;
}

/// The function built in: to stderr what the auxiliary threshold lets through, to
/// syslog all of it.
fn emit_default(level: Level, file: &CStr, line: u32, function: &CStr, message: &CStr) {
    let (name, severity) = match level {
        Level::Fatal => (c"*FATAL* ", libc::LOG_CRIT),
        Level::Error => (c"*ERROR* ", libc::LOG_ERR),
        Level::Warning => (c"*WARN*  ", libc::LOG_WARNING),
        Level::Notice => (c"*NOTE*  ", libc::LOG_NOTICE),
        Level::Info => (c"*INFO*  ", libc::LOG_INFO),
        Level::Debug => (c"*DEBUG* ", libc::LOG_DEBUG),
    };
    let path = file.to_bytes();
    let base = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
    let line = line as c_int;
    // SAFETY: every %s gets a NUL-terminated string that lives through the call and
    // every other conversion an argument of its type; `base` is inside `file`.
    unsafe {
        let file = file.as_ptr().add(base);
        let (name, function, message) = (name.as_ptr(), function.as_ptr(), message.as_ptr());
        // Relaxed: as in `enabled`.
        if level as i32 <= THRESHOLD_AUX.load(Ordering::Relaxed) {
            let (clock, micros) = now();
            libc::fprintf(
                stderr,
                c"%s.%06ld [%ld] %s%s: %3d: %s: %s".as_ptr(),
                clock.as_c_str().as_ptr(),
                micros,
                libc::syscall(libc::SYS_gettid),
                name,
                file,
                line,
                function,
                message,
            );
        }
        let format = c"%s%s: %3d: %s: %s".as_ptr();
        libc::syslog(severity, format, name, file, line, function, message);
    }
}

/// The local time as `Mon DD HH:MM:SS`, and the microseconds.
fn now() -> (Text<32>, libc::c_long) {
    let mut text = Text::new();
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut local = MaybeUninit::<libc::tm>::uninit();
    // SAFETY: both pointers are to values of the right type; `local` is read only
    // when localtime_r has filled it; strftime is told the size of the buffer and
    // leaves a NUL within it.
    unsafe {
        if libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) == 0
            && !libc::localtime_r(&now.tv_sec, local.as_mut_ptr()).is_null()
        {
            let format = c"%b %d %H:%M:%S".as_ptr();
            text.len = libc::strftime(text.bytes.as_mut_ptr().cast(), 32, format, local.as_ptr());
        }
    }
    if text.len == 0 {
        let _ = text.write_str("[time error]");
    }
    (text, now.tv_nsec / 1000)
}

/// A C string on the stack that takes what fits and drops the rest.
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    pub fn new() -> Self {
        let bytes = [0; N];
        Text { bytes, len: 0 }
    }

    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = N - 1 - self.len;
        let taken = s.len().min(room);
        self.bytes[self.len..self.len + taken].copy_from_slice(&s.as_bytes()[..taken]);
        self.len += taken;
        if taken < s.len() {
            return Err(fmt::Error);
        }
        Ok(())
    }
}

/// syslog is opened when the library is loaded and closed when it is unloaded.
mod load {
    use super::{OPEN, Ordering};

    #[used]
    #[unsafe(link_section = ".init_array")]
    static OPENED: extern "C" fn() = open;
    #[used]
    #[unsafe(link_section = ".fini_array")]
    static CLOSED: extern "C" fn() = close;

    extern "C" fn open() {
        // SAFETY: the identity is a static string, which syslog goes on using.
        unsafe { libc::openlog(c"rpma".as_ptr(), libc::LOG_PID, libc::LOG_LOCAL7) }
    }

    extern "C" fn close() {
        OPEN.store(false, Ordering::Release);
        // SAFETY: closelog takes no argument and may be called at any time.
        unsafe { libc::closelog() }
    }
}
