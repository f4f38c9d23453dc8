//! The helper: a program of a few pages that becomes the plugin, and stays behind as
//! its keeper. It allocates nothing and takes no lock, so that every fork of it is whole.
#![no_std]
#![no_main]

mod guard;
mod script;
mod steps;
mod sys;
#[path = "../wire.rs"]
#[allow(dead_code, unreachable_pub, reason = "it is written for both ends")]
mod wire;

mod start {
    //! What a program has without a C library: a first instruction, a last resort, and
    //! the four functions that the compiler itself calls.
    #![allow(unsafe_code)]

    use core::{arch::global_asm, ffi::c_char, panic::PanicInfo, slice};

    use crate::{script::Script, steps, sys, wire};

    // The kernel leaves the arguments on the stack and calls nobody.
    #[cfg(target_arch = "x86_64")]
    global_asm!(
        ".globl _start", "_start:", "xor ebp, ebp", "mov rdi, rsp", "and rsp, -16", "call {main}",
        "ud2", main = sym main,
    );
    #[cfg(target_arch = "aarch64")]
    global_asm!(
        ".globl _start", "_start:", "mov x29, xzr", "mov x30, xzr", "mov x0, sp", "b {main}",
        main = sym main,
    );

    /// `stack`: the number of arguments, the arguments, a null, the environment, a null.
    extern "C" fn main(stack: *const usize) -> ! {
        // SAFETY: the kernel has laid it out so for every program.
        let (argv, env) = unsafe {
            let arguments = *stack;
            let argv = stack.add(1).cast::<*const c_char>();
            (argv, argv.add(arguments + 1))
        };
        // SAFETY: a program has at least its name, or else the null behind it.
        let argv = unsafe { if (*argv).is_null() { argv } else { argv.add(1) } };
        match sys::map(sys::Fd(wire::SCRIPT)) {
            Ok(script) => steps::run(Script::new(script), steps::Program { argv, env }),
            // Started by hand, most likely.
            Err(_) => sys::exit(2),
        }
    }

    #[panic_handler]
    fn panic(_: &PanicInfo<'_>) -> ! {
        sys::exit(70)
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
        let mut at = 0;
        while at < n {
            // SAFETY: the caller answers for both ranges. Volatile, or the compiler would
            // see what this loop is, and call this function.
            unsafe { to.add(at).write_volatile(*from.add(at)) };
            at += 1;
        }
        to
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
        if to.cast_const() <= from {
            // SAFETY: forwards, a byte is read before it is overwritten.
            return unsafe { memcpy(to, from, n) };
        }
        let mut at = n;
        while 0 < at {
            at -= 1;
            // SAFETY: backwards, likewise.
            unsafe { to.add(at).write_volatile(*from.add(at)) };
        }
        to
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, byte: i32, n: usize) -> *mut u8 {
        let mut at = 0;
        while at < n {
            // SAFETY: the caller answers for the range.
            unsafe { to.add(at).write_volatile(byte as u8) };
            at += 1;
        }
        to
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
        // SAFETY: the caller answers for both ranges.
        let (a, b) = unsafe { (slice::from_raw_parts(a, n), slice::from_raw_parts(b, n)) };
        let differ = a.iter().zip(b).find(|(a, b)| a != b);
        differ.map_or(0, |(a, b)| i32::from(*a) - i32::from(*b))
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
        // SAFETY: the same contract.
        unsafe { memcmp(a, b, n) }
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn strlen(text: *const u8) -> usize {
        let mut n = 0;
        // SAFETY: the caller's text ends with a zero.
        while unsafe { *text.add(n) } != 0 {
            n += 1;
        }
        n
    }
}
