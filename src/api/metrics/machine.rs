//! Metrics of the machine that the process runs on: its cores, and its memory on Linux.

use waymark_runtime::MachineMemory;
use waymark_runtime::config::cores;

use super::recorder::MetricsRecorder;

/// Records the gauges of the machine.
pub(super) fn record(recorder: &MetricsRecorder) {
    recorder.gauge("waymark_cpu_cores", "CPU cores that the process may use").set(cores() as f64);
    let Some(MachineMemory { limit, available }) = MachineMemory::read() else { return };
    recorder.gauge("waymark_memory_limit_bytes", "Memory that the process may use").set(limit as f64);
    recorder.gauge("waymark_memory_available_bytes", "Memory that the process may still take").set(available as f64);
}
