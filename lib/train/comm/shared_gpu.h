/* SPDX-License-Identifier: BSD-3-Clause */
/* Which rank has which GPU. If two ranks of one host share a GPU, NCCL hangs or fails without a
 * reason. berth detects that here before it calls NCCL. */
#ifndef BERTH_TRAIN_COMM_SHARED_GPU_H
#define BERTH_TRAIN_COMM_SHARED_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* One rank's GPU, as sent between ranks of one build. */
struct rank_gpu {
	char host[64];
	char uuid[48];	 /* "GPU-..." or "MIG-..." as nvidia-smi -L prints it */
	int32_t version; /* the library's: NCCL_VERSION_CODE */
};

/* "GPU-8a1b2c3d-...": 16 bytes as NVML and nvidia-smi write them. text: 48 bytes. */
void gpu_uuid_text(const unsigned char uuid[16], char *text);
/* "2.28.9" from NCCL_VERSION_CODE, old and new form. text: 16 bytes. */
void gpu_version_text(int32_t version, char *text);

/* rank_gpus[count], by rank. Pure. UUIDs are unique in the world, so hosts are not compared: a
 * container may give each rank another host name. *shared: some GPU has more than one rank. Return
 * -ERR_UNAVAILABLE if that is not allowed (err: rank, host and UUID of each such rank, and the
 * fix), or if the ranks' libraries differ in their major or minor version. */
int gpus_check(const struct rank_gpu *rank_gpus, int count, bool allow_shared, bool *shared,
	       struct error *err);

#endif
