/* SPDX-License-Identifier: BSD-3-Clause */
/* Where the ranks of another launcher meet: they cannot ask each other, so each works it out alike.
 */
#ifndef BERTH_BIN_EXEC_EXEC_ADDRESS_H
#define BERTH_BIN_EXEC_EXEC_ADDRESS_H

#include "base/env.h"
#include "base/error.h"
#include "exec/exec_place.h"

struct exec_rendezvous {
	const char *master_addr; /* --master-addr: an address, "none", or NULL: work it out */
	int port;		 /* --port, or 0: work it out */
	const char *loopback;	 /* where the ranks of one node meet: "127.0.0.1" or "::1" */
	pid_t launcher_pid;	 /* exec_place_launcher_pid's, or the parent */
};

/* Replace in changes MASTER_ADDR, MASTER_PORT and JAX_COORDINATOR_ADDRESS by what env lacks: an
 * option wins, then what is set. On one node loopback, under srun the step's first node; the port
 * is a hash of the job's name, and rank 0 tries it (binds it and lets it go). 0; -ERR_UNAVAILABLE:
 * nobody has said where rank 0 is, or the port is taken; -ERR_USAGE: --master-addr is no bare
 * address; -ERR_DATA: SLURM_STEP_NODELIST is none. err says what to give. */
int exec_address_add(const struct exec_place *place, const struct exec_rendezvous *rendezvous,
		     const struct env *env, struct env *changes, struct error *err);

/* Can a program that sets SO_REUSEADDR, as all that rendezvous do, listen on port of this node?
 * Binds it on all addresses and lets go. 0 or -ERR_UNAVAILABLE. */
int exec_address_try(int port, struct error *err);

#endif
