/* SPDX-License-Identifier: BSD-3-Clause */
/* The communication seam: collectives between the ranks, ordered on a device queue. */
#ifndef BERTH_TRAIN_COMM_COMM_H
#define BERTH_TRAIN_COMM_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/error.h"
#include "train/device/device.h"

enum comm_reduce { COMM_SUM, COMM_MIN, COMM_MAX };

/* What a comm is opened with; borrowed during open. */
struct comm_request {
	int rank, size, local_rank;
	const char *address; /* MASTER_ADDR, for comms that meet there themselves */
	int port;
	int timeout_ms; /* of every wait */
	/* Of the device that is reduced on; NULL, or without a native handle: the host's memory. */
	struct device_queue *queue;
	const struct env *env; /* for comms that meet through ranks.h; NULL: those cannot */
	bool allow_shared_gpu;
	/* A comm with a thread of its own gave up, and the thread that trains has not noticed for
	 * LOST_MS: it hangs in something that cannot be called back. why names rank, host, step
	 * and bucket. Called from the comm's thread; may end the process. NULL is fine. */
	void (*lost)(void *context, const char *why);
	void *context;
};

/* First member of each comm's own struct. */
struct comm {
	const struct comm_ops *ops;
	int rank, size;
};

/* Rules for all collectives: every rank makes the same calls in the same order with the same
 * counts. data is memory of queue's device. A collective is begun after the work that is on queue
 * now, and is done after the next finish: later work on queue then sees the result. Several may
 * be under way. After an error or abort the comm only closes.
 * Errors: -ERR_NETWORK past the deadline (err names the ranks that did not come), after abort or
 * when a peer is lost. */
struct comm_ops {
	const char *name; /* "self", "mpi", "nccl" */
	/* Its calls take device memory, put work on the stream of queue (queue_native) and do not
	 * wait for it: a GPU may capture them in a graph. Else the memory is the host's. */
	bool on_stream;
	/* -ERR_DATA: the comm's world is not the request's; -ERR_UNAVAILABLE: its library says no.
	 */
	int (*open)(const struct comm_request *request, struct comm **out, struct error *err);
	int (*all_reduce)(struct comm *comm, struct device_queue *queue, void *data, size_t count,
			  enum element_type type, enum comm_reduce reduce, struct error *err);
	int (*broadcast)(struct comm *comm, struct device_queue *queue, void *data,
			 size_t size_bytes, int root, struct error *err);
	/* to: size * size_bytes, in rank order. */
	int (*all_gather)(struct comm *comm, struct device_queue *queue, const void *from, void *to,
			  size_t size_bytes, struct error *err);
	int (*barrier)(struct comm *comm, struct device_queue *queue, struct error *err);
	/* Memory that this comm reduces faster than queue's device's own (it is as good for
	 * everything else), size_bytes of it, 64-byte aligned, until close; NULL where there is
	 * none. Collective; may be asked once. The op itself is NULL where there never is. */
	int (*memory)(struct comm *comm, struct device_queue *queue, size_t size_bytes, void **out,
		      struct error *err);
	/* Make progress beside computation; may be called often; never waits. */
	int (*progress)(struct comm *comm, struct error *err);
	/* All collectives begun are done (for a queue of a GPU: the queue waits, the host need
	 * not). Ends a step's buckets; also after the launch of a captured step, which has a finish
	 * of its own in it. */
	int (*finish)(struct comm *comm, struct device_queue *queue, struct error *err);
	/* Work that is put on queue from now on is of this step (from 1, growing), whose
	 * all-reduces up to finish are its buckets; also before the launch of a captured step. Not
	 * during capture. For naming what hangs; NULL: this comm does not say. */
	int (*begin_step)(struct comm *comm, struct device_queue *queue, int64_t step,
			  struct error *err);
	/* What the reductions of the newest step took, and how much of it the queue waited for, by
	 * the GPU's clock. The queue has been waited for. false: nothing was measured. NULL: this
	 * comm does not measure. */
	bool (*overlap)(struct comm *comm, double *busy_ms, double *exposed_ms);
	/* From any thread: waits in progress and later calls fail with why. */
	void (*abort)(struct comm *comm, const char *why);
	/* Collective unless aborted or failed. NULL is fine. */
	void (*close)(struct comm *comm);
};

extern const struct comm_ops comm_self; /* a world of one */
#define COMM_MPI_MODULE "comm-mpi"	/* comm-mpi.so; symbol "comm_mpi" */
#define COMM_NCCL_MODULE "comm-nccl"	/* comm-nccl.so; symbol "comm_nccl" */

/* Is there a comm of that name? -ERR_USAGE lists them. Nothing is loaded. */
int comm_check_name(const char *name, struct error *err);
/* Open "auto" (self in a world of one; for a GPU nccl where its module is installed; else mpi),
 * "self", "nccl" or "mpi". search_path: see base/module.h. -ERR_USAGE: no such comm, self in a
 * larger world, or nccl without a GPU. */
int comm_open(const char *name, const struct comm_request *request, const char *search_path,
	      struct comm **out, struct error *err);

/* A comm that takes a device's own memory, made of one that takes the host's (not on_stream), which
 * becomes its: closing it closes both. It waits for the queue in each call. NULL: memory is out. */
struct comm *comm_stage(struct comm *inner);

/* The same on host memory, finished on return: for the small values that ranks agree on. Devices
 * that are not the host stage them. */
int comm_reduce_on_host(struct comm *comm, struct device_queue *queue, double *values, size_t count,
			enum comm_reduce reduce, struct error *err);
int comm_broadcast_on_host(struct comm *comm, struct device_queue *queue, void *data,
			   size_t size_bytes, int root, struct error *err);

#endif
