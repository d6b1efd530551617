/* SPDX-License-Identifier: BSD-3-Clause */
/* Opening and closing a communicator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "train/comm/nccl/nccl_internal.h"

#define KEY_ID "berth.nccl.id"
#define KEY_ENTERED "berth.nccl.in"
#define MISSING_MS 2000 /* to find out which ranks are missing */
#define LEAVE_MS 5000	/* to finalize the communicator */

extern const struct comm_ops comm_nccl;

int nccl_prepare(const struct comm_request *request, char common[48], struct error *err)
{
	const struct nccl_library *library;
	int version, rc = nccl_library_load(&library, &version, err);
	char text[16];

	(void)request;
	nccl_version_text(version, text);
	/* Releases with the same minor version are compatible. */
	*strrchr(text, '.') = 0;
	snprintf(common, 48, "NCCL %s", text);
	return rc;
}

/* Ranks on one GPU: make NCCL treat them as ranks of different hosts, which use sockets. NCCL reads
 * these variables when a communicator starts; values set by the user stay. */
static void pretend_hosts(const struct nccl *nccl)
{
	char host[32];

	snprintf(host, sizeof host, "berth-rank-%d", nccl->comm.rank);
	setenv("NCCL_HOSTID", host, 0);
	setenv("NCCL_NVLS_ENABLE", "0", 0);
	if (nccl->meeting->one_node) {
		setenv("NCCL_SOCKET_IFNAME", "lo", 0);
		setenv("NCCL_IB_DISABLE", "1", 0);
	}
}

/* ---- NCCL ---- */

/* Rank 0's NCCL id, or why it has none. */
struct shared_id {
	struct error err;
	ncclUniqueId id;
};

/* Input on rank 0, output on the others. Return rank 0's error, which all ranks have alike, or
 * -ERR_NETWORK after the timeout. */
static int share_id(const struct nccl *nccl, struct shared_id *shared, struct error *err)
{
	int rc = nccl->comm.rank ? ranks_get_exact(nccl->ranks, 0, KEY_ID, nccl->timeout_ms, shared,
						   sizeof *shared, err)
				 : ranks_put(nccl->ranks, KEY_ID, shared, sizeof *shared, err);

	shared->err.text[sizeof shared->err.text - 1] = 0;
	return !rc && shared->err.code ? error_set(err, shared->err.code, "%s", shared->err.text)
				       : rc;
}

/* The deadline has passed: find the ranks that are missing. */
static int set_init_error(struct nccl *nccl, struct error *err)
{
	struct ranks_list missing = {0};

	ranks_find_missing(nccl->ranks, KEY_ENTERED, nccl->meeting->hosts, MISSING_MS, &missing);
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
			 nccl->timeout_ms / 1000, nccl->comm.size);
}

static int init_communicator(struct nccl *nccl, ncclUniqueId id, struct error *err)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	int rc = ranks_put(nccl->ranks, KEY_ENTERED, "in", 2, err);

	if (rc)
		return rc;
	config.blocking = 0;
	if (nccl->meeting->shared_gpu) {
		pretend_hosts(nccl);
		config.maxCTAs = 2;
	}

	int64_t until = clock_now_ms() + nccl->timeout_ms;

	pthread_mutex_lock(&nccl->lock);
	ncclResult_t result =
		nccl->library->init(&nccl->handle, nccl->comm.size, id, nccl->comm.rank, &config);

	rc = nccl_wait_result(nccl, result, "NCCL initialization", nccl->timeout_ms, err);
	pthread_mutex_unlock(&nccl->lock);
	return rc && clock_now_ms() >= until ? set_init_error(nccl, err) : rc;
}

static int open_communicator(struct nccl *nccl, struct error *err)
{
	struct shared_id shared = {0};
	int version, rc = nccl_library_load(&nccl->library, &version, err);

	if (rc)
		return rc;

	cudaError_t gpu = cudaGetDevice(&nccl->cuda_device);

	if (gpu != cudaSuccess)
		return cuda_error(gpu, "querying the GPU", err);
	if (!nccl->comm.rank) {
		ncclResult_t result = nccl->library->unique_id(&shared.id);

		if (result != ncclSuccess)
			nccl_error(nccl->library, NULL, result, "creating NCCL's unique id",
				   &shared.err);
	}
	rc = share_id(nccl, &shared, err);
	if (!rc)
		rc = streams_new(nccl, err);
	if (!rc)
		rc = marks_new(nccl, err);
	if (!rc)
		rc = init_communicator(nccl, shared.id, err);
	return rc ? rc : watchdog_start(nccl, err);
}

int nccl_open(const struct comm_request *request, struct comm **out, struct error *err)
{
	struct nccl *nccl = calloc(1, sizeof *nccl);

	if (!nccl)
		return error_memory(err, "the communicator");
	nccl->comm = (struct comm){.ops = &comm_nccl, .rank = request->rank, .size = request->size};
	nccl->ranks = request->ranks;
	nccl->meeting = request->meeting;
	nccl->timeout_ms = request->timeout_ms;
	nccl->lost = request->lost;
	nccl->context = request->context;
	pthread_mutex_init(&nccl->lock, NULL);
	clock_cond_init(&nccl->changed);

	int rc = open_communicator(nccl, err);

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

bool nccl_close(struct comm *comm)
{
	struct nccl *nccl = (struct nccl *)comm;

	if (!nccl)
		return true;
	watchdog_stop(nccl);
	pthread_mutex_lock(&nccl->lock);
	finalize_communicator(nccl);
	pthread_mutex_unlock(&nccl->lock);
	/* If the process exits while that thread runs, it may die from a signal. */
	nccl_abort_wait(nccl);
	marks_free(nccl);
	streams_free(nccl);
	pthread_cond_destroy(&nccl->changed);
	pthread_mutex_destroy(&nccl->lock);
	free(nccl);
	return true;
}
