/* SPDX-License-Identifier: BSD-3-Clause */
/* libnccl.so.2, loaded when it is wanted: the one that LD_LIBRARY_PATH finds may be older than the
 * headers, and then a sentence is better than the loader's. Codes of NCCL and of the CUDA runtime
 * become errors here. */
#ifndef BERTH_TRAIN_COMM_NCCL_LIBRARY_H
#define BERTH_TRAIN_COMM_NCCL_LIBRARY_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdint.h>

#include "base/error.h"

#define NCCL_MIN_VERSION 21801 /* communicators that do not block, in graphs, and can be aborted   \
				*/

struct nccl_library {
	__typeof__(&ncclGetVersion) version;
	__typeof__(&ncclGetErrorString) error_string;
	__typeof__(&ncclGetLastError) last_error;
	__typeof__(&ncclGetUniqueId) unique_id;
	__typeof__(&ncclCommInitRankConfig) init;
	__typeof__(&ncclCommGetAsyncError) async_error;
	__typeof__(&ncclCommFinalize) finalize;
	__typeof__(&ncclCommDestroy) destroy;
	__typeof__(&ncclCommAbort) abort;
	__typeof__(&ncclAllReduce) all_reduce;
	__typeof__(&ncclBroadcast) broadcast;
	__typeof__(&ncclAllGather) all_gather;
};

/* Once a process; the table stays. *version: NCCL_VERSION_CODE. -ERR_UNAVAILABLE: not there, or
 * older than NCCL_MIN_VERSION. */
int nccl_library_load(const struct nccl_library **out, int *version, struct error *err);

/* NCCL's own words for result, with its last message where there is one. text: what was done. */
int nccl_error(const struct nccl_library *library, ncclComm_t handle, ncclResult_t result,
	       const char *what, struct error *err);
int cuda_error(cudaError_t result, const char *what, struct error *err);

#endif
