/* SPDX-License-Identifier: BSD-3-Clause */
/* libnccl.so.2, loaded on demand. The library in LD_LIBRARY_PATH may be older than the headers;
 * berth then reports that clearly, not as an error of the dynamic linker. This file translates
 * error codes of NCCL and of the CUDA runtime. */
#ifndef BERTH_TRAIN_COMM_NCCL_LIBRARY_H
#define BERTH_TRAIN_COMM_NCCL_LIBRARY_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdint.h>

#include "base/error.h"

/* The first with communicators that do not block, can be captured in graphs and can be aborted. */
#define NCCL_MIN_VERSION 21801

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

/* Load the library once per process; the table stays valid. *version is NCCL_VERSION_CODE. Return
 * 0, or -ERR_UNAVAILABLE if it is missing or older than NCCL_MIN_VERSION. */
int nccl_library_load(const struct nccl_library **out, int *version, struct error *err);

/* "2.28.9" from NCCL_VERSION_CODE, old and new form. */
void nccl_version_text(int version, char text[16]);

/* Report NCCL's message for result, with its last error if there is one. what is the operation. */
int nccl_error(const struct nccl_library *library, ncclComm_t handle, ncclResult_t result,
	       const char *what, struct error *err);
int cuda_error(cudaError_t result, const char *what, struct error *err);

#endif
