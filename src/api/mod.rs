//! The C interface, one file a family.
//!
//! A function checks its arguments, calls the core and gives the code of the result.
//! The documentation of this layer is that of `librpma.h`, which is generated from
//! it.
//!
//! What holds for all of them: a handle is made by one function and released by
//! another, and is not used after that; a pointer argument points to what its type
//! says or is NULL, which is an error wherever it is not said to mean something; an
//! out-parameter is written only on success; the result is 0 or one of `RPMA_E_*`.

#![allow(non_camel_case_types)]

pub mod conn;
pub mod conn_cfg;
pub mod conn_req;
pub mod cq;
pub mod ep;
pub mod err;
pub mod log;
pub mod mr;
pub mod ops;
pub mod peer;
pub mod peer_cfg;
pub mod srq;
pub mod srq_cfg;
pub mod utils;

use crate::core::{Error, Result, Setting, room};
use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

/// Gives C functions their names in the library.
///
/// The names are aliases that rustc does not know of, since one that it knows gets
/// no version from the version script: see `build.rs`.
macro_rules! export {
    ($($name:ident)+) => {
        $(std::arch::global_asm!(
            concat!(".globl ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(".set ", stringify!($name), ", {function}"),
            function = sym $name,
        );)+
    };
}
use export;

/// An enum as C passes it: any number.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct CEnum<T>(pub c_int, PhantomData<T>);

/// Does the work of a C function and gives the code of its result.
#[inline(always)]
fn call(work: impl FnOnce() -> Result<()>) -> c_int {
    match work() {
        Ok(()) => 0,
        Err(error) => error.code(),
    }
}

/// What a pointer argument points to.
///
/// # Safety
/// `ptr` is NULL or points to a T that is alive as long as the result is used.
#[inline(always)]
unsafe fn get<'a, T>(ptr: *const T) -> Result<&'a T> {
    // SAFETY: vouched for.
    unsafe { ptr.as_ref() }.ok_or(Error::INVAL)
}

/// A string argument.
///
/// # Safety
/// `ptr` is NULL or a C string that is alive as long as the result is used.
unsafe fn string<'a>(ptr: *const c_char) -> Result<&'a CStr> {
    if ptr.is_null() {
        return Err(Error::INVAL);
    }
    // SAFETY: vouched for.
    Ok(unsafe { CStr::from_ptr(ptr) })
}

/// An out-parameter, to be written on success.
///
/// # Safety
/// `ptr` is NULL or valid to write to as long as the result is used.
#[inline(always)]
unsafe fn out<'a, T>(ptr: *mut T) -> Result<&'a mut MaybeUninit<T>> {
    // SAFETY: vouched for; nothing is read from it.
    unsafe { ptr.cast::<MaybeUninit<T>>().as_mut() }.ok_or(Error::INVAL)
}

/// Hands a new object over to C.
fn give<T>(object: T, handle: &mut MaybeUninit<*mut T>) -> Result<()> {
    give_box(Box::write(room()?, object), handle);
    Ok(())
}

/// Hands over what has its memory already.
fn give_box<T>(object: Box<T>, handle: &mut MaybeUninit<*mut T>) {
    handle.write(Box::into_raw(object));
}

/// Takes an object back from C, clearing its handle; None if there is none.
///
/// # Safety
/// `handle` is NULL or points to NULL or to an object handed over by [`give_box`].
unsafe fn take<T>(handle: *mut *mut T) -> Result<Option<T>> {
    // SAFETY: vouched for; the object has no other owner once the handle is cleared.
    unsafe {
        let handle = handle.as_mut().ok_or(Error::INVAL)?;
        let object = std::mem::replace(handle, ptr::null_mut());
        Ok((!object.is_null()).then(|| *Box::from_raw(object)))
    }
}

/// Releases an object and clears its handle, also when a step of that fails.
///
/// # Safety
/// As [`take`].
unsafe fn delete<T>(handle: *mut *mut T, delete: impl FnOnce(T) -> Result<()>) -> c_int {
    // SAFETY: passed on to the caller.
    call(|| match unsafe { take(handle) }? {
        Some(object) => delete(object),
        None => Ok(()),
    })
}

/// Sets a size of a configuration.
///
/// # Safety
/// `cfg` is NULL or a configuration.
unsafe fn set_size<T>(cfg: *mut T, member: impl FnOnce(&T) -> &Setting<u32>, size: u32) -> c_int {
    call(|| {
        // SAFETY: passed on to the caller.
        member(unsafe { get(cfg) }?).set(size);
        Ok(())
    })
}

/// Reads a size of a configuration.
///
/// # Safety
/// `cfg` is NULL or a configuration, `size` NULL or valid to write to.
unsafe fn get_size<T>(
    cfg: *const T,
    member: impl FnOnce(&T) -> &Setting<u32>,
    size: *mut u32,
) -> c_int {
    call(|| {
        // SAFETY: passed on to the caller.
        let (cfg, size) = unsafe { (get(cfg)?, out(size)?) };
        size.write(member(cfg).get());
        Ok(())
    })
}
