//! Words that findings and the report for people have in common.

/// What failed, without the advice that librpma gives after it: the findings give their own.
pub fn cause(why: &str) -> &str {
    why.split_once(". ").map_or(why, |(cause, _)| cause)
}

/// A number of bytes, exact where it is a whole number of a unit.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (count.max(1).ilog2() / 10) as usize;
    let size = 1_u64 << (10 * unit);
    match count % size {
        0 => format!("{} {}", count / size, UNITS[unit]),
        _ => format!("{:.1} {}", count as f64 / size as f64, UNITS[unit]),
    }
}
