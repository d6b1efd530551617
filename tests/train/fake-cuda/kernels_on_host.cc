/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs the GPU kernels on the host: blocks one after another, and their threads one after another,
 * too; in a kernel with barriers, threads take turns from barrier to barrier. */
#include "fake.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#else
inline void __sanitizer_start_switch_fiber(void **, const void *, size_t)
{
}
inline void __sanitizer_finish_switch_fiber(void *, const void **, size_t *)
{
}
#endif

#undef __global__
#undef __device__
#undef __shared__
#undef __forceinline__
#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline

namespace
{

#define STACK ((size_t)64 << 10)

uint3 threadIdx, blockIdx;
dim3 gridDim, blockDim;

/* A thread of a block that waits at a barrier or has not started. */
struct fibre {
	ucontext_t context; /* the start; later switches are jumps, which need no system call */
	jmp_buf at;
	std::unique_ptr<char[]> stack;
	void *asan;
	uint3 place;
	bool begun, done;
};

std::vector<fibre> fibres;
jmp_buf scheduler;
/* ASan must know which stack it is on: its state of the scheduler, and the scheduler's stack. */
void *scheduler_asan;
const void *scheduler_stack;
size_t scheduler_size;
fibre *running; /* NULL: threads are plain calls */
const std::function<void()> *body;

void fibre_main(void)
{
	__sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_size);
	(*body)();
	running->done = true;
	__sanitizer_start_switch_fiber(nullptr, scheduler_stack, scheduler_size);
	_longjmp(scheduler, 1);
}

void __syncthreads(void)
{
	fibre *self = running;

	if (!self) {
		fprintf(stderr,
			"fake GPU: a barrier in a kernel that has_barriers does not list\n");
		abort();
	}
	if (!_setjmp(self->at)) {
		__sanitizer_start_switch_fiber(&self->asan, scheduler_stack, scheduler_size);
		_longjmp(scheduler, 1);
	}
	__sanitizer_finish_switch_fiber(self->asan, nullptr, nullptr);
	threadIdx = self->place;
}

bool has_barriers(const char *kernel)
{
	return strstr(kernel, "sums_kernel") || strstr(kernel, "finish_kernel") ||
	       strstr(kernel, "entropy_kernel") || strstr(kernel, "mse_kernel") ||
	       strstr(kernel, "count_kernel");
}

void run_fibres(const std::function<void()> &kernel)
{
	const size_t count = (size_t)blockDim.x * blockDim.y;
	volatile size_t left = count;

	while (fibres.size() < count) {
		fibres.emplace_back();
		fibres.back().stack.reset(new char[STACK]);
	}
	body = &kernel;
	for (size_t i = 0; i < count; i++) {
		fibre &one = fibres[i];

		getcontext(&one.context);
		one.context.uc_stack.ss_sp = one.stack.get();
		one.context.uc_stack.ss_size = STACK;
		one.context.uc_link = nullptr;
		one.place = {(unsigned)(i % blockDim.x), (unsigned)(i / blockDim.x), 0};
		one.begun = one.done = false;
		makecontext(&one.context, fibre_main, 0);
	}
	while (left) {
		/* Start with the last one: no code may rely on the order. */
		for (volatile size_t i = count; i-- > 0;) {
			if (fibres[i].done)
				continue;
			running = &fibres[i];
			threadIdx = running->place;
			if (!_setjmp(scheduler)) {
				__sanitizer_start_switch_fiber(&scheduler_asan,
							       running->stack.get(), STACK);
				if (running->begun)
					_longjmp(running->at, 1);
				running->begun = true;
				setcontext(&running->context);
			}
			__sanitizer_finish_switch_fiber(scheduler_asan, nullptr, nullptr);
			left = left - running->done;
		}
	}
	running = nullptr;
}

void run_grid(dim3 grid, dim3 block, bool barriers, const std::function<void()> &kernel)
{
	gridDim = grid;
	blockDim = block;
	for (unsigned i = 0; i < grid.x * grid.y; i++) {
		blockIdx = {i % grid.x, i / grid.x, 0};
		if (barriers) {
			run_fibres(kernel);
			continue;
		}
		for (unsigned t = 0; t < block.x * block.y; t++) {
			threadIdx = {t % block.x, t / block.x, 0};
			kernel();
		}
	}
}

template <typename Kernel, typename... Arguments>
void launch(const char *name, Kernel kernel, dim3 grid, dim3 block, cudaStream_t stream,
	    Arguments... arguments)
{
	bool barriers = has_barriers(name);

	if (!grid.x || !grid.y || grid.y > 65535 || block.x * block.y > 1024) {
		fprintf(stderr, "fake GPU: %s: a grid of %u by %u blocks of %u by %u\n", name,
			grid.x, grid.y, block.x, block.y);
		abort();
	}
	fake_trace("%s, %u x %u blocks of %u x %u", name, grid.x, grid.y, block.x, block.y);
	fake_put(stream, [=] {
		std::function<void()> thread = [=] { kernel(arguments...); };

		fake_cost(0.2);
		run_grid(grid, block, barriers, thread);
	});
}

} // namespace

#define LAUNCH(kernel, grid, block, stream, ...)                                                   \
	launch(#kernel, kernel, dim3(grid), dim3(block), stream, __VA_ARGS__)

#include "train/device/cuda/kernels/kernels.cuh"

extern "C" cudaError_t kernels_usable(void)
{
	return cudaSuccess;
}
