/* SPDX-License-Identifier: BSD-3-Clause */
/* The rendezvous address for ranks of another launcher. They cannot ask each other, so each derives
 * the same one. */
#ifndef BERTH_BIN_EXEC_EXEC_ADDRESS_H
#define BERTH_BIN_EXEC_EXEC_ADDRESS_H

#include "base/env.h"
#include "base/error.h"
#include "exec/exec_place.h"

struct exec_rendezvous {
	const char *master_addr; /* --master-addr: an address, "none", or NULL: derive it */
	int port;		 /* --port, or 0: derive it */
	const char *loopback;	 /* rendezvous of the ranks of one node: "127.0.0.1" or "::1" */
	pid_t launcher_pid;	 /* from exec_place_launcher_pid, or the parent's pid */
};

/* Set in changes MASTER_ADDR, MASTER_PORT and JAX_COORDINATOR_ADDRESS where env lacks them. An
 * option wins over what is set. On one node the address is loopback, under srun the step's first
 * node. The port is a hash of the job's name; rank 0 tests it by binding and releasing it. Return
 * 0; -ERR_UNAVAILABLE if rank 0's host is unknown or the port is taken; -ERR_USAGE if --master-addr
 * is not a bare address; -ERR_DATA if SLURM_STEP_NODELIST is invalid. err says which option to
 * give. */
int exec_address_add(const struct exec_place *place, const struct exec_rendezvous *rendezvous,
		     const struct env *env, struct env *changes, struct error *err);

/* Can a program that sets SO_REUSEADDR, as all rendezvous code does, listen on port of this node?
 * Binds it on all addresses and releases it. Return 0 or -ERR_UNAVAILABLE. */
int exec_address_try(int port, struct error *err);

#endif
