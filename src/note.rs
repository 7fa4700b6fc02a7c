//! The version, as a note of the file: `readelf -n librpma.so`, or a program that looks at what the
//! loader gave it. There is no function that tells.

/// An ELF note of type `NT_VERSION`; each part is filled up to a multiple of four bytes.
#[repr(C)]
struct Note {
    name_size: u32,
    text_size: u32,
    kind: u32,
    name: [u8; 8],
    text: [u8; 8],
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

// SAFETY: a section of its own, which only readers of notes look into, as what it is.
#[used]
#[unsafe(link_section = ".note.librpma")]
static NOTE: Note = Note {
    name_size: 8,
    text_size: VERSION.len() as u32 + 1,
    kind: 1,
    name: *b"librpma\0",
    text: padded(VERSION.as_bytes()),
};

const fn padded(text: &[u8]) -> [u8; 8] {
    let mut padded = [0; 8];
    let (start, _) = padded.split_at_mut(text.len());
    start.copy_from_slice(text);
    padded
}
