//! Opens NVIDIA's libraries at run time, when they are first needed. Any of them may be missing.

use super::driver::Outcome;
use libloading::Library;

/// Opens the first of these libraries that exists, until the process ends.
pub(super) fn open(names: &[String]) -> Outcome<&'static Library> {
    // SAFETY: the libraries are NVIDIA's or the user's replacements, and loading them has no effect on other code.
    let found = names.iter().find_map(|name| unsafe { Library::new(name) }.ok());
    found.map(|library| &*Box::leak(Box::new(library))).ok_or_else(|| match names {
        [name] => format!("{name} was not found"),
        names => format!("none of {} was found", names.join(", ")),
    })
}

/// Declares a struct of a library's functions. Each function returns a code, which is 0 on success.
macro_rules! functions {
    ($(#[$doc:meta])* $name:ident { $($field:ident = $symbol:literal($($argument:ty),* $(,)?);)* }) => {
        $(#[$doc])*
        pub(super) struct $name {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> std::ffi::c_int,)*
        }
        impl $name {
            pub(super) fn of(library: &libloading::Library) -> $crate::device::cuda::driver::Outcome<$name> {
                Ok($name {
                    $($field: {
                        let missing = |error| format!("the library has no function {}: {error}", $symbol);
                        // SAFETY: the type is the one that NVIDIA's header declares for this name.
                        *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }.map_err(missing)?
                    },)*
                })
            }
        }
    };
}
pub(super) use functions;
