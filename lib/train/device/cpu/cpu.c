/* SPDX-License-Identifier: BSD-3-Clause */
/* Module device-cpu.so: the CPU on oneDNN. Work is done when the call that queues it returns. */
#include "train/device/cpu/cpu.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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
	rc = engine_new(&cpu->engine, err);
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
	engine_free(cpu->engine);
	free(cpu);
	/* Its threads end here, not with the process: LeakSanitizer cannot look past them. */
	omp_pause_resource_all(omp_pause_soft);
}

static void describe(const struct device *device, char *text, size_t size)
{
	int threads = omp_get_max_threads();
	char engine[64];

	engine_describe(engine, sizeof engine);
	snprintf(text, size, "cpu (%s, %s, %d thread%s)", engine,
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
				 "out of memory: a buffer of %zu MiB; try a smaller --batch",
				 size_bytes >> 20);
#ifdef MADV_HUGEPAGE
	/* Large steps through large arrays miss fewer page tables; where it fails nothing is lost.
	 */
	if (alignment == HUGE_PAGE)
		madvise(memory, size_bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
	*out = memory;
	return 0;
}

static void memory_free(struct device *device, void *memory)
{
	free(memory);
}

static int queue_new(struct device *device, struct device_queue **out, struct error *err)
{
	struct device_queue *queue = calloc(1, sizeof *queue);

	if (!queue)
		return error_memory(err, "a queue");
	queue->device = device;
	*out = queue;
	return 0;
}

static void queue_free(struct device_queue *queue)
{
	free(queue);
}

static int queue_wait(struct device_queue *queue, int timeout_ms, struct error *err)
{
	return 0;
}

static int queue_after(struct device_queue *queue, struct device_queue *other, struct error *err)
{
	return 0;
}

static void *queue_native(struct device_queue *queue)
{
	return NULL;
}

static int copy(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
		struct error *err)
{
	if (size_bytes)
		memcpy(to, from, size_bytes);
	return 0;
}

static bool supports(const struct device *device, const struct op_call *call)
{
	return (unsigned)call->kind < OP_KINDS;
}

static int run(struct device_queue *queue, const struct op_call *call, struct error *err)
{
	int rc = op_check(call, err);

	return rc ? rc : cpu_op((struct cpu *)queue->device, call, err);
}

const struct device_ops device_cpu = {
	.name = "cpu",
	.open = cpu_open,
	.close = cpu_close,
	.describe = describe,
	.memory_new = memory_new,
	.memory_free = memory_free,
	.queue_new = queue_new,
	.queue_free = queue_free,
	.queue_wait = queue_wait,
	.queue_after = queue_after,
	.queue_native = queue_native,
	.copy_in = copy,
	.copy_out = copy,
	.supports = supports,
	.run = run,
	.step_new = cpu_step_new,
	.step_run = cpu_step_run,
	.step_read = cpu_step_read,
	.step_free = cpu_step_free,
};
