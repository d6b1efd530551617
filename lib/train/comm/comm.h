/* SPDX-License-Identifier: BSD-3-Clause */
/* The communication interface: collectives between the ranks, ordered on a device queue. */
#ifndef BERTH_TRAIN_COMM_COMM_H
#define BERTH_TRAIN_COMM_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/error.h"
#include "train/device/device.h"

enum comm_reduce { COMM_SUM, COMM_MIN, COMM_MAX };

struct meeting; /* meeting.h */
struct ranks;	/* rendezvous/ranks.h */

/* How to open a comm; borrowed during open. */
struct comm_request {
	int rank, size, local_rank;
	/* Where the ranks met, and what was decided; used until the comm is closed, by gloo and
	 * nccl. */
	struct ranks *ranks;
	const struct meeting *meeting;
	const char *address; /* MASTER_ADDR */
	int timeout_ms;	     /* for every wait */
	/* A queue of the device that is reduced on. NULL, or one without a native handle: host
	 * memory. */
	struct device_queue *queue;
	const struct env *env; /* NULL: no MPI launcher is looked for, and GLOO_SOCKET_IFNAME */
	/* Called from the thread of a comm that has one (may be NULL; may end the process). The
	 * comm has failed, but the training thread did not notice for NOTICE_MS because it hangs in
	 * a call that cannot be interrupted. why names rank, host, step and bucket. */
	void (*lost)(void *context, const char *why);
	void *context;
};

/* First member of each comm's own struct. */
struct comm {
	const struct comm_ops *ops;
	int rank, size;
};

/* Rules for all collectives. Every rank makes the same calls in the same order with the same
 * counts. data is memory of queue's device. A collective starts after the work now on queue, and is
 * complete after the next finish: later work on queue then sees the result. Several may be in
 * progress. After an error or abort a comm can only be closed. Errors: -ERR_NETWORK after the
 * deadline (err names the missing ranks), after abort, or when a peer is lost. */
struct comm_ops {
	const char *name; /* "self", "mpi", "nccl", "gloo" */
	/* Collectives take device memory, put work on queue's stream (queue_native) and do not wait
	 * for it, so a CUDA graph may capture them. If false, the memory is host memory. */
	bool on_stream;
	/* Can this rank take part? common: what the ranks' libraries must have in common. NULL:
	 * nothing is asked. Neither request->ranks nor ->meeting is set yet. Return 0, or
	 * -ERR_UNAVAILABLE. */
	int (*prepare)(const struct comm_request *request, char common[48], struct error *err);
	/* Return 0; -ERR_DATA if the comm's world differs from the request's; -ERR_UNAVAILABLE if
	 * its library fails. */
	int (*open)(const struct comm_request *request, struct comm **out, struct error *err);
	int (*all_reduce)(struct comm *comm, struct device_queue *queue, void *data, size_t count,
			  enum element_type type, enum comm_reduce reduce, struct error *err);
	int (*broadcast)(struct comm *comm, struct device_queue *queue, void *data,
			 size_t size_bytes, int root, struct error *err);
	/* to: size * size_bytes, in rank order. */
	int (*all_gather)(struct comm *comm, struct device_queue *queue, const void *from, void *to,
			  size_t size_bytes, struct error *err);
	int (*barrier)(struct comm *comm, struct device_queue *queue, struct error *err);
	/* Memory of size_bytes that this comm reduces faster than the device's own and that serves
	 * equally otherwise. It is 64-byte aligned and lives until close; NULL if there is none.
	 * Collective; call it at most once. The op is NULL if a comm never has such memory. */
	int (*memory)(struct comm *comm, struct device_queue *queue, size_t size_bytes, void **out,
		      struct error *err);
	/* Make progress during computation. May be called often; never waits. */
	int (*progress)(struct comm *comm, struct error *err);
	/* Complete all collectives begun. With a GPU's queue, the queue waits and the host need
	 * not. Call it after a step's buckets, and also after launching a captured step, which
	 * contains a finish of its own. */
	int (*finish)(struct comm *comm, struct device_queue *queue, struct error *err);
	/* Work put on queue from now on belongs to this step (from 1, growing); its all-reduces up
	 * to finish are the step's buckets. Call it also before launching a captured step, but not
	 * during capture. It helps to name what hangs; NULL: this comm does not track steps. */
	int (*begin_step)(struct comm *comm, struct device_queue *queue, int64_t step,
			  struct error *err);
	/* How long the newest step's reductions took, and how much of that the queue waited, by the
	 * GPU's clock. The caller must have waited for the queue. false: nothing was measured.
	 * NULL: this comm does not measure. */
	bool (*overlap)(struct comm *comm, double *busy_ms, double *exposed_ms);
	/* From any thread: make present waits and later calls fail with why. */
	void (*abort)(struct comm *comm, const char *why);
	/* Collective unless aborted or failed. NULL is allowed. false: a thread that hangs may
	 * still read what the request has lent. */
	bool (*close)(struct comm *comm);
};

extern const struct comm_ops comm_self; /* for a single rank */

/* Check that a comm of that name exists, without loading anything. Return 0, or -ERR_USAGE with the
 * list of comms. */
int comm_check_name(const char *name, struct error *err);
/* What comm_choose chose on this rank: all ranks must have the same. */
struct comm_choice {
	const struct comm_ops *ops;
	const char *why;      /* its reason; NULL: the caller named it */
	struct error instead; /* why it is not one that would be better; code 0: none would */
};
/* Choose "auto", "self", "nccl", "mpi" or "gloo". "auto" is self for a single rank; else nccl for a
 * GPU if its module is installed; else mpi if an MPI launcher started the ranks and its module is
 * installed; else gloo. search_path: see base/module.h. Return -ERR_USAGE for an unknown name, self
 * for several ranks, or nccl without a GPU. */
int comm_choose(const char *name, const struct comm_request *request, const char *search_path,
		struct comm_choice *out, struct error *err);

/* Make a comm for device memory from one for host memory (not on_stream). It owns inner: closing it
 * closes both. Each call waits for the queue. NULL if memory is out. */
struct comm *comm_stage(struct comm *inner);

/* The same on host memory, complete on return: for the few values on which ranks agree. Devices
 * with their own memory stage them. */
int comm_reduce_on_host(struct comm *comm, struct device_queue *queue, double *values, size_t count,
			enum comm_reduce reduce, struct error *err);
int comm_broadcast_on_host(struct comm *comm, struct device_queue *queue, void *data,
			   size_t size_bytes, int root, struct error *err);

#endif
