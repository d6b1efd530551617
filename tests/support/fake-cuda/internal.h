/* SPDX-License-Identifier: BSD-3-Clause */
/* What runtime.cc (streams, events, graphs) offers memory.cc. */
#ifndef BERTH_TESTS_FAKE_INTERNAL_H
#define BERTH_TESTS_FAKE_INTERNAL_H

#include "fake.h"

#include <mutex>

namespace fake
{

using guard = std::lock_guard<std::mutex>;
extern std::mutex lock; /* of all that follows */
extern long waits;	/* how often the host waited for the GPU */

[[noreturn]] void die(const char *what);
/* Keep code for cudaGetLastError and return it. */
cudaError_t fails(cudaError_t code);
/* For a call that CUDA forbids during a capture: invalidate the captures under way. Return whether
 * there are any. */
bool breaks_capture(void);
/* Return stream. End the process if it is the default stream, or does not exist. */
CUstream_st *living(CUstream_st *stream);
/* fake_put. */
void work(CUstream_st *stream, std::function<void()> what);
/* Wait until stream, or all of the GPU, has done its work. */
void pump(CUstream_st *stream);
void pump_all(void);
/* Start a copy on the default stream. Only pump_all waits for it. */
void arrive_late(std::function<void()> copy);

} // namespace fake

#endif
