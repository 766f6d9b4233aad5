//! Matrix multiplication by cublasLt, with an algorithm chosen by the caller.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use super::context::ContextHandle;
use super::cublas::{self, OP_N, OP_T, R_8F_E4M3, R_16BF, R_32F};
use super::shared_library::{library_functions, text};
use super::{Gpu, blas};
use crate::cuda::CudaError;
use crate::cuda::algorithms::{Algorithm, MatMulShape, OutputKind};
use crate::cuda::driver::{DeviceMatrix, MatMul, MatMulOperands, MatMulTarget};
use crate::cuda::kernel::DeviceSlice;

/// Any of the opaque pointers of cublasLt.
type Pointer = *mut c_void;

/// `cublasLtMatmulDescAttributes_t`.
const TRANSPOSE_A: c_int = 3;
const TRANSPOSE_B: c_int = 4;
const SCALE_POINTER_A: c_int = 17;
const SCALE_POINTER_B: c_int = 18;
const SCALE_MODE_A: c_int = 31;
const SCALE_MODE_B: c_int = 32;
/// `CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F`: a scale for each row of the result and one for each column. In cublasLt
/// 12.9 and later, on GPUs of compute capability 9.0.
const SCALE_PER_ROW: c_int = 3;
/// `cublasLtMatmulPreferenceAttributes_t`.
const MAX_WORKSPACE: c_int = 1;
const REDUCTION_SCHEMES: c_int = 3;
/// `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`: parts of a sum are added in `f32`, as cuBLAS is told to do as well.
const REDUCE_IN_F32: u32 = 2;
/// `CUBLASLT_REDUCTION_SCHEME_NONE`: sums have one part.
const NO_REDUCTION: u32 = 0;

/// Alignment in bytes that heuristics assume of all matrices unless told otherwise.
const ALIGNMENT: u64 = 256;

/// `CUBLAS_STATUS_INVALID_VALUE` and `CUBLAS_STATUS_NOT_SUPPORTED`.
const UNSUITABLE: [c_int; 2] = [7, 15];

/// Maximum number of algorithms that the heuristics propose for a shape.
const PROPOSALS: usize = 8;

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct HeuristicResult {
    algorithm: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const NO_RESULT: HeuristicResult =
    HeuristicResult { algorithm: [0; 8], workspace: 0, state: 0, waves: 0.0, reserved: [0; 4] };

library_functions! {
    /// cublasLt.
    CublasLt from "cublasLt";
    create = c"cublasLtCreate": fn(*mut Pointer) -> c_int;
    destroy = c"cublasLtDestroy": fn(Pointer) -> c_int;
    get_version = c"cublasLtGetVersion": fn() -> usize;
    status_string = c"cublasLtGetStatusString": fn(c_int) -> *const c_char;
    create_operation = c"cublasLtMatmulDescCreate": fn(*mut Pointer, c_int, c_int) -> c_int;
    set_operation = c"cublasLtMatmulDescSetAttribute": fn(Pointer, c_int, *const c_void, usize) -> c_int;
    destroy_operation = c"cublasLtMatmulDescDestroy": fn(Pointer) -> c_int;
    create_layout = c"cublasLtMatrixLayoutCreate": fn(*mut Pointer, c_int, u64, u64, i64) -> c_int;
    destroy_layout = c"cublasLtMatrixLayoutDestroy": fn(Pointer) -> c_int;
    create_preference = c"cublasLtMatmulPreferenceCreate": fn(*mut Pointer) -> c_int;
    set_preference = c"cublasLtMatmulPreferenceSetAttribute": fn(Pointer, c_int, *const c_void, usize) -> c_int;
    destroy_preference = c"cublasLtMatmulPreferenceDestroy": fn(Pointer) -> c_int;
    propose = c"cublasLtMatmulAlgoGetHeuristic": fn(
        Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, c_int, *mut HeuristicResult, *mut c_int,
    ) -> c_int;
    check_algorithm = c"cublasLtMatmulAlgoCheck": fn(
        Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, *const [u64; 8], *mut HeuristicResult,
    ) -> c_int;
    multiply = c"cublasLtMatmul": fn(
        Pointer, Pointer, *const c_void, *const c_void, Pointer, *const c_void, Pointer, *const c_void, *const c_void,
        Pointer, *mut c_void, Pointer, *const [u64; 8], *mut c_void, usize, *mut c_void,
    ) -> c_int;
}

impl CublasLt {
    fn log(&self) {
        let path = self.library.path(Some(self.multiply as *const c_void));
        tracing::info!(path = %path.display(), version = self.version(), "loaded cublasLt");
    }

    /// Returns the version, such as `12.4.5`.
    pub(super) fn version(&self) -> String {
        // SAFETY: takes nothing.
        let version = unsafe { (self.get_version)() };
        c_int::try_from(version).map_or_else(|_| version.to_string(), cublas::format_version)
    }

    fn check(&self, action: &'static str, status: c_int) -> Result<(), CudaError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: returns a static string for any number.
        let about = text(unsafe { (self.status_string)(status) });
        Err(CudaError::Call { action, reason: format!("cublasLt status {status} ({about})") })
    }
}

/// A handle of cublasLt, for one stream and one workspace.
pub(super) struct LtHandle {
    library: &'static CublasLt,
    handle: Pointer,
    stream: Pointer,
    /// Memory that algorithms may use; the stream runs one of them at a time.
    workspace: DeviceSlice<u8>,
    hold: Arc<ContextHandle>,
}

// SAFETY: a handle may be used by any thread.
unsafe impl Send for LtHandle {}

impl LtHandle {
    /// Creates a handle. `workspace` outlives it.
    pub(super) fn new(gpu: &Gpu, workspace: DeviceSlice<u8>) -> Result<Self, CudaError> {
        gpu.bind()?;
        let library = CublasLt::get()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes the handle.
        library.check("cannot initialize cublasLt", unsafe { (library.create)(&mut handle) })?;
        Ok(Self { library, handle, stream: gpu.stream().cast(), workspace, hold: gpu.hold() })
    }

    /// Returns the version of the library.
    pub(super) fn version(&self) -> String {
        self.library.version()
    }

    /// Returns algorithms for products of this shape, the presumably fastest first.
    pub(super) fn proposals(&self, product: &MatMul) -> Result<Vec<Algorithm>, CudaError> {
        let Some(operation) = Operation::new(self.library, product)? else { return Ok(Vec::new()) };
        // For long sums of few rows in `e4m3`, the heuristics may know only algorithms that split them, which cannot apply
        // a scale per row; told not to split, they name others.
        let schemes: &[u32] = match product.operands {
            MatMulOperands::Fp8(..) => &[REDUCE_IN_F32, NO_REDUCTION],
            _ => &[REDUCE_IN_F32],
        };
        let mut proposals = Vec::new();
        for &scheme in schemes {
            for proposal in self.proposals_of(&operation, scheme)? {
                if !proposals.contains(&proposal) {
                    proposals.push(proposal);
                }
            }
        }
        Ok(proposals)
    }

    /// Returns algorithms that split sums at most in these ways.
    fn proposals_of(&self, operation: &Operation, schemes: u32) -> Result<Vec<Algorithm>, CudaError> {
        let preference = Preference::new(self.library, self.workspace.len(), schemes)?;
        let Operation { operation, a, b, c, .. } = operation;
        let mut results = [NO_RESULT; PROPOSALS];
        let mut count = 0;
        // SAFETY: all descriptors live; writes at most `PROPOSALS` results.
        let status = unsafe {
            let d = c.pointer;
            let room = results.as_mut_ptr();
            let most = PROPOSALS as c_int;
            let operation = operation.pointer;
            (self.library.propose)(
                self.handle,
                operation,
                a.pointer,
                b.pointer,
                c.pointer,
                d,
                preference.0.pointer,
                most,
                room,
                &mut count,
            )
        };
        if UNSUITABLE.contains(&status) {
            return Ok(Vec::new());
        }
        self.library.check("cannot list algorithms for a matrix multiplication", status)?;
        let count = usize::try_from(count).unwrap_or(0);
        let usable = |result: &&HeuristicResult| result.state == 0 && result.workspace <= self.workspace.len();
        let algorithm = |result: &HeuristicResult| Algorithm { words: result.algorithm, workspace: result.workspace };
        Ok(results.iter().take(count).filter(usable).map(algorithm).collect())
    }

    /// Returns `true` if an algorithm, for example one from a file, can compute this product in the workspace.
    pub(super) fn accepts(&self, product: &MatMul, algorithm: &Algorithm) -> Result<bool, CudaError> {
        let Some(operation) = Operation::new(self.library, product)? else { return Ok(false) };
        let Operation { operation, a, b, c, .. } = &operation;
        let mut result = NO_RESULT;
        // SAFETY: all descriptors live; writes one result.
        let status = unsafe {
            let d = c.pointer;
            let words = &raw const algorithm.words;
            (self.library.check_algorithm)(
                self.handle,
                operation.pointer,
                a.pointer,
                b.pointer,
                c.pointer,
                d,
                words,
                &mut result,
            )
        };
        Ok(status == 0 && result.state == 0 && result.workspace <= self.workspace.len())
    }

    /// Enqueues a product whose buffers were checked. Returns `false`, before anything is enqueued, when its form, its
    /// alignment or its number of rows does not suit the algorithm.
    pub(super) fn multiply(&self, product: &MatMul, algorithm: &Algorithm) -> Result<bool, CudaError> {
        let Some(operation) = Operation::new(self.library, product)? else { return Ok(false) };
        if !operation.aligned() || algorithm.workspace > self.workspace.len() {
            return Ok(false);
        }
        let Operation { operation, a, b, c, beta } = &operation;
        let scale = product.scale;
        let memory = self.workspace;
        // SAFETY: all descriptors live, sizes were checked by the caller, and the stream owns the workspace.
        let status = unsafe {
            (self.library.multiply)(
                self.handle,
                operation.pointer,
                std::ptr::from_ref(&scale).cast(),
                a.address as *const c_void,
                a.pointer,
                b.address as *const c_void,
                b.pointer,
                std::ptr::from_ref(beta).cast(),
                c.address as *const c_void,
                c.pointer,
                c.address as *mut c_void,
                c.pointer,
                &raw const algorithm.words,
                memory.address() as *mut c_void,
                memory.len(),
                self.stream,
            )
        };
        if UNSUITABLE.contains(&status) {
            return Ok(false);
        }
        self.library.check("cannot multiply matrices", status).map(|()| true)
    }
}

impl Drop for LtHandle {
    fn drop(&mut self) {
        // SAFETY: created by `new`.
        self.hold.free(|| unsafe { (self.library.destroy)(self.handle) });
    }
}

/// A descriptor of cublasLt in host memory, destroyed on drop.
struct Descriptor {
    pointer: Pointer,
    destroy: unsafe extern "C" fn(Pointer) -> c_int,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: whoever made the descriptor gave it its own function.
        unsafe { (self.destroy)(self.pointer) };
    }
}

/// A matrix with its address.
struct Matrix {
    pointer: Pointer,
    address: u64,
    /// Owner of `pointer`.
    _descriptor: Descriptor,
}

impl Matrix {
    fn new(
        library: &CublasLt,
        kind: c_int,
        sides: [usize; 2],
        (stride, address): (usize, u64),
    ) -> Result<Self, CudaError> {
        let mut pointer = std::ptr::null_mut();
        let [rows, columns] = sides.map(|side| side as u64);
        // SAFETY: writes the pointer.
        let status =
            unsafe { (library.create_layout)(&mut pointer, kind, rows, columns, i64::from(blas::size(stride)?)) };
        library.check("cannot describe a matrix", status)?;
        Ok(Self { pointer, address, _descriptor: Descriptor { pointer, destroy: library.destroy_layout } })
    }
}

/// Descriptors of a product. cublasLt is column-major, so it sees every matrix transposed: its A is the right
/// operand, its B the left one, and its C, which is also its D, has as many rows as the product has columns.
struct Operation {
    operation: Descriptor,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    beta: f32,
}

impl Operation {
    /// Describes a product. Returns `None` when it is not of the form of [`MatMulShape`], or when the library does not
    /// know its scales.
    fn new(library: &CublasLt, product: &MatMul) -> Result<Option<Self>, CudaError> {
        let Some(MatMulShape { inner, columns, output, rows, .. }) = MatMulShape::of(product) else { return Ok(None) };
        let (kind, left, right, scales) = match product.operands {
            MatMulOperands::Half(left, right) => (R_16BF, place(&left), place(&right), None),
            MatMulOperands::Fp8(left, right) => {
                let scales = [right.scales.address(), left.scales.address()];
                (R_8F_E4M3, place(&left.values), place(&right.values), Some(scales))
            }
            MatMulOperands::Single(..) => return Ok(None),
        };
        let mut pointer = std::ptr::null_mut();
        // SAFETY: writes the pointer.
        let status = unsafe { (library.create_operation)(&mut pointer, cublas::COMPUTE_32F, R_32F) };
        library.check("cannot describe a matrix multiplication", status)?;
        let operation = Descriptor { pointer, destroy: library.destroy_operation };
        for (attribute, value) in [(TRANSPOSE_A, OP_T), (TRANSPOSE_B, OP_N)] {
            let value = std::ptr::from_ref(&value).cast();
            // SAFETY: the descriptor lives; the value has the attribute's type.
            let status = unsafe { (library.set_operation)(pointer, attribute, value, size_of::<c_int>()) };
            library.check("cannot describe a matrix multiplication", status)?;
        }
        if let Some(scales) = scales
            && !set_scales(library, &operation, scales)?
        {
            return Ok(None);
        }
        let (output_kind, stride, address) = match product.target {
            MatMulTarget::Half(to) => (R_16BF, to.stride, to.values.address()),
            MatMulTarget::Single(to) | MatMulTarget::Sum(to) => (R_32F, to.stride, to.values.address()),
        };
        Ok(Some(Self {
            operation,
            a: Matrix::new(library, kind, [inner, columns], right)?,
            b: Matrix::new(library, kind, [inner, rows], left)?,
            c: Matrix::new(library, output_kind, [columns, rows], (stride, address))?,
            beta: if output == OutputKind::Sum { 1.0 } else { 0.0 },
        }))
    }

    /// Returns `true` if all matrices are aligned as the algorithms were chosen for.
    fn aligned(&self) -> bool {
        [&self.a, &self.b, &self.c].iter().all(|matrix| matrix.address.is_multiple_of(ALIGNMENT))
    }
}

/// Returns the stride and the address of a matrix.
fn place<T>(matrix: &DeviceMatrix<T>) -> (usize, u64) {
    (matrix.stride, matrix.values.address())
}

/// Sets the addresses of the scales of the columns of A and B, one for each. Returns `false` if the library is too old.
fn set_scales(library: &CublasLt, operation: &Descriptor, [a, b]: [u64; 2]) -> Result<bool, CudaError> {
    for (mode, pointer, address) in [(SCALE_MODE_A, SCALE_POINTER_A, a), (SCALE_MODE_B, SCALE_POINTER_B, b)] {
        let value = std::ptr::from_ref(&SCALE_PER_ROW).cast();
        // SAFETY: the descriptor lives; the value has the attribute's type.
        let status = unsafe { (library.set_operation)(operation.pointer, mode, value, size_of::<c_int>()) };
        if UNSUITABLE.contains(&status) {
            return Ok(false);
        }
        library.check("cannot describe a matrix multiplication", status)?;
        let value = std::ptr::from_ref(&address).cast();
        // SAFETY: as above; an attribute that is a pointer has the size of an address.
        let status = unsafe { (library.set_operation)(operation.pointer, pointer, value, size_of::<u64>()) };
        library.check("cannot describe a matrix multiplication", status)?;
    }
    Ok(true)
}

/// Requirements on proposed algorithms.
struct Preference(Descriptor);

impl Preference {
    fn new(library: &CublasLt, workspace: usize, schemes: u32) -> Result<Self, CudaError> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: writes the pointer.
        library.check("cannot describe algorithms", unsafe { (library.create_preference)(&mut pointer) })?;
        let preference = Self(Descriptor { pointer, destroy: library.destroy_preference });
        let workspace = workspace as u64;
        let value = std::ptr::from_ref(&workspace).cast();
        // SAFETY: the descriptor lives; the value has the attribute's type.
        let status = unsafe { (library.set_preference)(pointer, MAX_WORKSPACE, value, size_of::<u64>()) };
        library.check("cannot describe algorithms", status)?;
        let value = std::ptr::from_ref(&schemes).cast();
        // SAFETY: as above.
        let status = unsafe { (library.set_preference)(pointer, REDUCTION_SCHEMES, value, size_of::<u32>()) };
        library.check("cannot describe algorithms", status)?;
        Ok(preference)
    }
}
