//! CUDA's libraries besides the driver: found and loaded at run time, once per process.
//!
//! Names carry the major version, newest first: an unversioned name such as `libcublas.so` may be of any version, and
//! would win over the one that this program was tested with.

use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

use super::library;

/// Major versions of the libraries, in order of preference.
const MAJORS: [i32; 2] = [13, 12];

/// Folder of the toolkit, searched after the loader's own path.
const TOOLKIT: &str = "/usr/local/cuda/lib64";

/// A loaded library, never unloaded.
pub(super) struct SharedLibrary {
    library: Library,
    /// Name or path that was opened.
    opened: PathBuf,
}

impl SharedLibrary {
    /// Loads `lib{name}.so.{major}` of the newest major version that is installed and that the driver supports.
    ///
    /// # Errors
    /// A message with all names and folders that were tried.
    pub(super) fn open(name: &str) -> Result<Self, String> {
        let driver = library::version().map_err(library::describe)?;
        open_first(name, driver, |path| {
            // SAFETY: opening a library runs its initializers; these are the vendor's own.
            unsafe { Library::new(path) }.map_err(|error| error.to_string())
        })
        .map(|(library, opened)| Self { library, opened })
    }

    /// Returns a function.
    ///
    /// # Errors
    /// A message with the name of the function and the library.
    ///
    /// # Safety
    /// `F` is the type of a function pointer with the signature of `symbol`.
    pub(super) unsafe fn function<F: Copy>(&self, symbol: &CStr) -> Result<F, String> {
        // SAFETY: the caller's promise. The library is never unloaded.
        match unsafe { self.library.get::<F>(symbol.to_bytes_with_nul()) } {
            Ok(function) => Ok(*function),
            Err(error) => Err(format!("{} has no function {symbol:?}: {error}", self.path(None).display())),
        }
    }

    /// Returns the path of the file: that of `function`, an address in the library, if the system knows it.
    pub(super) fn path(&self, function: Option<*const c_void>) -> PathBuf {
        function.and_then(file_of).unwrap_or_else(|| self.opened.clone())
    }
}

/// Declares the functions of a library, with their C signatures, as a struct that is loaded once per process.
macro_rules! library_functions {
    (
        $(#[$doc:meta])*
        $name:ident from $library:literal;
        $($field:ident = $symbol:literal: fn($($argument:ty),* $(,)?) -> $returned:ty;)*
    ) => {
        $(#[$doc])*
        pub(super) struct $name {
            library: $crate::cuda::device::shared_library::SharedLibrary,
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $returned,)*
        }

        impl $name {
            /// Returns the functions, after loading the library at the first call.
            ///
            /// # Errors
            /// [`CudaError::Unavailable`](crate::cuda::CudaError::Unavailable), at every call, when the library is
            /// missing or too old.
            pub(super) fn get() -> Result<&'static Self, $crate::cuda::CudaError> {
                static LOADED: std::sync::OnceLock<Result<$name, String>> = std::sync::OnceLock::new();
                let loaded = LOADED.get_or_init(|| Self::load().inspect(Self::log));
                loaded.as_ref().map_err(|reason| $crate::cuda::CudaError::Unavailable(reason.clone()))
            }

            fn load() -> Result<Self, String> {
                let library = $crate::cuda::device::shared_library::SharedLibrary::open($library)?;
                // SAFETY: the signatures are those of the library's header.
                unsafe { Ok(Self { $($field: library.function($symbol)?,)* library }) }
            }
        }
    };
}
pub(super) use library_functions;

/// Returns the names to open, in order.
fn candidates(name: &str, driver: i32) -> Vec<PathBuf> {
    // A library needs a driver of its own major version or a newer one.
    let majors = MAJORS.into_iter().filter(|major| major * 1000 <= driver);
    majors
        .flat_map(|major| {
            let file = format!("lib{name}.so.{major}");
            [PathBuf::from(&file), Path::new(TOOLKIT).join(&file)]
        })
        .collect()
}

/// Opens the first candidate that `open` can.
fn open_first<L>(name: &str, driver: i32, open: impl Fn(&Path) -> Result<L, String>) -> Result<(L, PathBuf), String> {
    let candidates = candidates(name, driver);
    let mut failures = Vec::new();
    for path in &candidates {
        match open(path) {
            Ok(library) => return Ok((library, path.clone())),
            Err(error) => {
                // A file that is not there needs no words; one that is there and lacks a dependency does.
                if !error.starts_with(&format!("{}: cannot open", path.display())) {
                    failures.push(error);
                }
            }
        }
    }
    let names: Vec<_> =
        candidates.iter().filter(|path| path.is_relative()).map(|path| path.display().to_string()).collect();
    let failed = if failures.is_empty() { String::new() } else { format!(" ({})", failures.join("; ")) };
    Err(format!(
        "cannot load {} from the loader's path (LD_LIBRARY_PATH and the system's folders) or {TOOLKIT}{failed}: install \
         CUDA's libraries, or add their folder to LD_LIBRARY_PATH (PyTorch installs them under site-packages/nvidia, \
         with their dependencies next to them)",
        names.join(" or ")
    ))
}

/// Returns the file that an address was loaded from.
#[cfg(target_os = "linux")]
fn file_of(address: *const c_void) -> Option<PathBuf> {
    // SAFETY: a plain struct of pointers, for which all zeros is valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: writes the struct; any address is allowed.
    let found = unsafe { libc::dladdr(address, &mut info) } != 0;
    let name = info.dli_fname;
    // SAFETY: a string of the loader, which lives as long as the library, which is never unloaded.
    (found && !name.is_null()).then(|| PathBuf::from(text(name)))
}

#[cfg(not(target_os = "linux"))]
fn file_of(_: *const c_void) -> Option<PathBuf> {
    None
}

/// Converts a static string of a library; null gives an empty string.
pub(super) fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: libraries return null-terminated strings.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(driver: i32) -> Vec<String> {
        candidates("cublas", driver).iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn the_newest_version_that_the_driver_supports_comes_first() {
        let twelve = ["libcublas.so.12", "/usr/local/cuda/lib64/libcublas.so.12"];
        let thirteen = ["libcublas.so.13", "/usr/local/cuda/lib64/libcublas.so.13"];
        assert_eq!(names(12_040), twelve);
        assert_eq!(names(13_000), [thirteen, twelve].concat());
        let found = |there: &str| {
            let open = |path: &Path| match path.to_str() == Some(there) {
                true => Ok(()),
                false => Err(format!("{}: cannot open shared object file", path.display())),
            };
            open_first("cublas", 13_010, open).unwrap().1
        };
        for there in [thirteen, twelve].concat() {
            assert_eq!(found(there), Path::new(there));
        }
    }

    #[test]
    fn a_library_that_is_missing_is_named_with_where_it_was_looked_for_and_with_what_its_file_lacks() {
        let open = |path: &Path| match path.is_absolute() && path.to_str().unwrap().ends_with(".13") {
            true => Err::<(), _>("libcublasLt.so.13: cannot open shared object file".to_owned()),
            false => Err(format!("{}: cannot open shared object file", path.display())),
        };
        let error = open_first("cublas", 13_000, open).unwrap_err();
        for part in
            ["libcublas.so.13 or libcublas.so.12", "LD_LIBRARY_PATH", TOOLKIT, "(libcublasLt.so.13: cannot open"]
        {
            assert!(error.contains(part), "{error}");
        }
        assert!(!error.contains("libcublas.so.12: cannot"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_file_of_a_function_is_found_and_a_missing_function_is_named() {
        // SAFETY: the C library, which is loaded anyway.
        let library = unsafe { Library::new("libc.so.6") }.unwrap();
        let library = SharedLibrary { library, opened: PathBuf::from("libc.so.6") };
        type Abs = unsafe extern "C" fn(i32) -> i32;
        // SAFETY: the signature of `abs`.
        let abs = unsafe { library.function::<Abs>(c"abs") }.unwrap();
        // SAFETY: any number is allowed.
        assert_eq!(unsafe { abs(-3) }, 3);
        let path = library.path(Some(abs as *const c_void));
        assert!(path.is_absolute() && path.to_string_lossy().contains("libc"), "{path:?}");
        // SAFETY: not called.
        let error = unsafe { library.function::<Abs>(c"no_such_function") }.unwrap_err();
        assert!(error.contains("libc.so.6 has no function") && error.contains("no_such_function"), "{error}");
    }
}
