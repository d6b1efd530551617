/* SPDX-License-Identifier: BSD-3-Clause */
/* Module device-cpu.so: the CPU with oneDNN. Work is done when the call that queues it returns. */
#include "train/device/cpu/cpu.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "train/device/host.h"

extern __attribute__((visibility("default"))) const struct device_ops device_cpu;

#define HUGE_PAGE ((size_t)2 << 20)

static int cpu_open(int index, struct device **out, struct error *err)
{
	struct cpu *cpu = calloc(1, sizeof *cpu);
	int rc;

	if (!cpu)
		return error_memory(err, "the device");
	cpu->device.ops = &device_cpu;
	cpu->kernels = kernels_best();
	rc = dnnl_context_new(&cpu->dnnl, err);
	if (rc)
		free(cpu);
	else
		*out = &cpu->device;
	return rc;
}

static void cpu_close(struct device *device)
{
	struct cpu *cpu = (struct cpu *)device;

	if (!cpu)
		return;
	dnnl_context_free(cpu->dnnl);
	free(cpu);
	/* End OpenMP's threads here instead of with the process: LeakSanitizer cannot see past
	 * them. */
	omp_pause_resource_all(omp_pause_soft);
}

static void cpu_describe(const struct device *device, char *text, size_t size)
{
	int threads = omp_get_max_threads();
	char dnnl[64];

	dnnl_context_describe(dnnl, sizeof dnnl);
	snprintf(text, size, "cpu (%s, %s, %d thread%s)", dnnl,
		 ((const struct cpu *)device)->kernels->name, threads, threads == 1 ? "" : "s");
}

static int memory_new(struct device *device, size_t size_bytes, void **out, struct error *err)
{
	size_t alignment = size_bytes >= HUGE_PAGE ? HUGE_PAGE : 64;
	void *memory = NULL;

	if (size_bytes < SIZE_MAX - HUGE_PAGE)
		memory = aligned_alloc(alignment, (size_bytes + alignment) / alignment * alignment);
	if (!memory)
		return error_set(err, ERR_UNAVAILABLE,
				 "out of memory: cannot allocate %zu MiB. Use a smaller --batch",
				 size_bytes >> 20);
#ifdef MADV_HUGEPAGE
	/* Huge pages reduce TLB misses with large strides; a failure is harmless. */
	if (alignment == HUGE_PAGE)
		madvise(memory, size_bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
	*out = memory;
	return 0;
}

const struct device_ops device_cpu = {
	.name = "cpu",
	.open = cpu_open,
	.close = cpu_close,
	.describe = cpu_describe,
	.memory_new = memory_new,
	.memory_free = host_memory_free,
	.queue_new = host_queue_new,
	.queue_free = host_queue_free,
	.queue_native = host_queue_native,
	.copy_in = host_copy,
	.copy_out = host_copy,
	.executor = &cpu_executor,
};
