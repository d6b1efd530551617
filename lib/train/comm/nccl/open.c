/* SPDX-License-Identifier: BSD-3-Clause */
/* Opening and closing a communicator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "train/comm/nccl/nccl_internal.h"

#define MISSING_MS 2000 /* to find out which ranks are missing */
#define LEAVE_MS 5000	/* to finalize the communicator */

extern const struct comm_ops comm_nccl;

/* ---- rendezvous ---- */

static int describe_gpu(struct nccl *nccl, int version, struct rank_gpu *out, struct error *err)
{
	struct cudaDeviceProp properties;
	cudaError_t result = cudaGetDevice(&nccl->cuda_device);

	if (result == cudaSuccess)
		result = cudaGetDeviceProperties(&properties, nccl->cuda_device);
	if (result != cudaSuccess)
		return cuda_error(result, "querying the GPU", err);
	memset(out, 0, sizeof *out);
	if (gethostname(out->host, sizeof out->host - 1))
		snprintf(out->host, sizeof out->host, "?");
	gpu_uuid_text((const unsigned char *)&properties.uuid, out->uuid);
	out->version = version;
	return 0;
}

/* Ranks on one GPU: make NCCL treat them as ranks of different hosts, which use sockets. NCCL reads
 * these variables when a communicator starts; values set by the user stay. */
static void pretend_hosts(const struct nccl *nccl)
{
	char host[32];
	bool one = true;

	for (int rank = 1; rank < nccl->rendezvous.size; rank++)
		one = one && !strcmp(nccl->rendezvous.hosts[rank], nccl->rendezvous.hosts[0]);
	snprintf(host, sizeof host, "berth-rank-%d", nccl->rendezvous.rank);
	setenv("NCCL_HOSTID", host, 0);
	setenv("NCCL_NVLS_ENABLE", "0", 0);
	if (one) {
		setenv("NCCL_SOCKET_IFNAME", "lo", 0);
		setenv("NCCL_IB_DISABLE", "1", 0);
	}
}

/* ---- NCCL ---- */

/* The deadline has passed: find the ranks that are missing. */
static int set_init_error(struct nccl *nccl, struct error *err)
{
	struct ranks_list missing = {0};

	nccl_rendezvous_missing(&nccl->rendezvous, MISSING_MS, &missing);
	if (missing.count)
		return error_set(
			err, ERR_NETWORK,
			"NCCL initialization did not complete within %d s; missing ranks: %s. Look "
			"for earlier errors in their output, or raise --comm-timeout",
			nccl->timeout_ms / 1000, missing.text);
	return error_set(err, ERR_NETWORK,
			 "NCCL initialization did not complete within %d s, although all %d ranks "
			 "entered it: they cannot reach each other. Test the network with berth "
			 "check; NCCL_DEBUG=INFO shows which interfaces NCCL chose",
			 nccl->timeout_ms / 1000, nccl->rendezvous.size);
}

static int init_communicator(struct nccl *nccl, const unsigned char *id, struct error *err)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId unique;
	int rc = nccl_rendezvous_announce(&nccl->rendezvous, err);

	if (rc)
		return rc;
	config.blocking = 0;
	if (nccl->rendezvous.shared) {
		pretend_hosts(nccl);
		config.maxCTAs = 2;
	}
	memcpy(&unique, id, sizeof unique);

	int64_t until = clock_now_ms() + nccl->timeout_ms;

	pthread_mutex_lock(&nccl->lock);
	ncclResult_t result = nccl->library->init(&nccl->handle, nccl->rendezvous.size, unique,
						  nccl->rendezvous.rank, &config);

	rc = nccl_wait_result(nccl, result, "NCCL initialization", nccl->timeout_ms, err);
	pthread_mutex_unlock(&nccl->lock);
	return rc && clock_now_ms() >= until ? set_init_error(nccl, err) : rc;
}

static int open_communicator(struct nccl *nccl, const struct comm_request *request,
			     struct error *err)
{
	unsigned char id[NCCL_RENDEZVOUS_ID_BYTES] = {0};
	ncclUniqueId unique = {{0}};
	struct rank_gpu gpu;
	int version;
	int rc = nccl_library_load(&nccl->library, &version, err);

	_Static_assert(sizeof id == sizeof unique, "NCCL's unique id");
	if (!rc)
		rc = describe_gpu(nccl, version, &gpu, err);
	if (rc)
		return rc;
	if (!request->rank) {
		ncclResult_t result = nccl->library->unique_id(&unique);

		if (result != ncclSuccess)
			return nccl_error(nccl->library, NULL, result, "creating NCCL's unique id",
					  err);
		memcpy(id, &unique, sizeof id);
	}
	rc = nccl_rendezvous_begin(nccl->ranks, &gpu, request->allow_shared_gpu,
				   request->timeout_ms, id, &nccl->rendezvous, err);
	if (!rc)
		rc = streams_new(nccl, err);
	if (!rc)
		rc = marks_new(nccl, err);
	if (!rc)
		rc = init_communicator(nccl, id, err);
	return rc ? rc : watchdog_start(nccl, err);
}

int nccl_open(const struct comm_request *request, struct comm **out, struct error *err)
{
	struct nccl *nccl = calloc(1, sizeof *nccl);

	if (!nccl)
		return error_memory(err, "the communicator");
	nccl->comm = (struct comm){.ops = &comm_nccl, .rank = request->rank, .size = request->size};
	nccl->ranks = request->ranks;
	nccl->timeout_ms = request->timeout_ms;
	nccl->lost = request->lost;
	nccl->context = request->context;
	pthread_mutex_init(&nccl->lock, NULL);
	clock_cond_init(&nccl->changed);

	int rc = open_communicator(nccl, request, err);

	if (rc) {
		nccl->failed = true;
		nccl_close(&nccl->comm);
		return rc;
	}
	*out = &nccl->comm;
	return 0;
}

/* The caller holds the lock. */
static void finalize_communicator(struct nccl *nccl)
{
	if (!nccl->handle)
		return;
	if (nccl->failed) {
		nccl_abort_bounded(nccl);
		return;
	}
	ncclComm_t handle = nccl->handle;
	ncclResult_t result = nccl->library->finalize(handle);

	/* The others may have ended already without notice: that is not an error at this point. */
	if (nccl_wait_result(nccl, result, "leaving", LEAVE_MS, NULL)) {
		nccl_abort_bounded(nccl);
		return;
	}
	nccl->library->destroy(handle);
	nccl->handle = NULL;
}

void nccl_close(struct comm *comm)
{
	struct nccl *nccl = (struct nccl *)comm;

	if (!nccl)
		return;
	watchdog_stop(nccl);
	pthread_mutex_lock(&nccl->lock);
	finalize_communicator(nccl);
	pthread_mutex_unlock(&nccl->lock);
	/* If the process exits while that thread runs, it may die from a signal. */
	nccl_abort_wait(nccl);
	marks_free(nccl);
	streams_free(nccl);
	nccl_rendezvous_free(&nccl->rendezvous);
	pthread_cond_destroy(&nccl->changed);
	pthread_mutex_destroy(&nccl->lock);
	free(nccl);
}
