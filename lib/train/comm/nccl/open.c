/* SPDX-License-Identifier: BSD-3-Clause */
/* Opening and closing a communicator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "train/comm/nccl/nccl_internal.h"

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

	snprintf(host, sizeof host, "berth-rank-%d", nccl->rendezvous.rank);
	setenv("NCCL_HOSTID", host, 0);
	setenv("NCCL_NVLS_ENABLE", "0", 0);
	if (nccl->rendezvous.meeting->one_node) {
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
	if (nccl->rendezvous.meeting->shared_gpu) {
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

static int open_communicator(struct nccl *nccl, struct error *err)
{
	struct nccl_rendezvous_id id = {0};
	int version, rc = nccl_library_load(&nccl->library, &version, err);
	ncclUniqueId unique = {{0}};

	_Static_assert(sizeof id.bytes == sizeof unique, "NCCL's unique id");
	if (rc)
		return rc;

	cudaError_t gpu = cudaGetDevice(&nccl->cuda_device);

	if (gpu != cudaSuccess)
		return cuda_error(gpu, "querying the GPU", err);
	if (!nccl->comm.rank) {
		ncclResult_t result = nccl->library->unique_id(&unique);

		if (result != ncclSuccess)
			nccl_error(nccl->library, NULL, result, "creating NCCL's unique id",
				   &id.err);
		memcpy(id.bytes, &unique, sizeof unique);
	}
	rc = nccl_rendezvous_share(&nccl->rendezvous, nccl->timeout_ms, &id, err);
	if (!rc)
		rc = streams_new(nccl, err);
	if (!rc)
		rc = marks_new(nccl, err);
	if (!rc)
		rc = init_communicator(nccl, id.bytes, err);
	return rc ? rc : watchdog_start(nccl, err);
}

int nccl_open(const struct comm_request *request, struct comm **out, struct error *err)
{
	struct nccl *nccl = calloc(1, sizeof *nccl);

	if (!nccl)
		return error_memory(err, "the communicator");
	nccl->comm = (struct comm){.ops = &comm_nccl, .rank = request->rank, .size = request->size};
	nccl->rendezvous = (struct nccl_rendezvous){request->ranks, request->meeting, request->rank,
						    request->size, false};
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
