/* SPDX-License-Identifier: BSD-3-Clause */
/* Several programs in one job. Each role is a job of its own (controller/job.h), with agents, ranks
 * and a rendezvous on its part of the nodes; jobs.c runs them together. */
#ifndef BERTH_ROLES_ROLES_H
#define BERTH_ROLES_ROLES_H

#include "roles/decide.h"
#include "roles/jobs.h"

#define ROLE_NAME_MAX 32
#define ROLE_NONE "none" /* of --after: no role */

/* One program of the command line. Strings are borrowed. */
struct role {
	const char
		*name; /* letters, digits, "-" and "_", the first a letter; "NAME.0" of replicas */
	const char *base;      /* the NAME of replicas; else name */
	int replica, replicas; /* from 0; 0: it has none */
	int need;	       /* how many of its replicas must be ready, and remain; 0: all */
	const char *on;	       /* a role on whose nodes it is, beside that, or NULL */
	bool on_first;	       /* on the first one, of each replica */
	const char *const *argv;
	const char *chdir; /* NULL: the job's */
	/* Names of roles, separated by commas, or ROLE_NONE. NULL: a service after none, others
	 * after all services. */
	const char *after;
	bool service, restart;		  /* --restart: alone, at most --max-restarts times */
	bool overlap;			  /* it uses what other roles use, too */
	int nodes, ranks, ranks_per_node; /* 0: option absent */
	int group;			  /* of a heterogeneous job; -1: option absent */
	int gpus_per_rank;		  /* 0: none; -1: option absent */
	int ports;			  /* 0: none */
	bool per_node;
	struct container container; /* image NULL: the job's */
	struct job_ready ready;	    /* text NULL: option absent */
	const char **env;	    /* "NAME=VALUE", env_count of them */
	size_t env_count;
};

/* Read the text of --ready; keeps timeout_ms. The caller frees out->place. -ERR_USAGE. */
int roles_read_ready(const char *text, struct job_ready *out, struct error *err);

/* The role of that name, of replicas the first, or -1. */
long roles_find(const struct role *roles, size_t count, const char *name);

/* What decide.h needs of each role, with its order. -ERR_USAGE: --after names no role, or a role
 * would wait for itself. */
int roles_rules(const struct role *roles, size_t count, struct role_rule *rules, struct error *err);

/* Check names, --after, --on, placeholders, and that there is work besides services. -ERR_USAGE. */
int roles_check(const struct role *roles, size_t count, struct error *err);

/* Share out the nodes of alloc: node n is role i's if uses[i * alloc->node_count + n]. Roles have
 * disjoint nodes, in their order, except those without GPUs of their own (or with overlap), which
 * are on the job's first nodes beside others; on one node, all share it. shared[i]: another role,
 * which does not overlap, is on one of role i's nodes.
 * Pure. -ERR_USAGE if there are too few nodes. */
int roles_assign(const struct role *roles, size_t count, const struct alloc *alloc, bool *uses,
		 bool *shared, struct error *err);

/* Everything that jobs_run needs for one attempt. */
struct roles_set;

/* base: the request of a job of one program, from which the roles' requests are made; sinks: one
 * per role; restarted: for all attempts, [count], see jobs_request. All is borrowed until
 * roles_close. -ERR_USAGE, -ERR_UNAVAILABLE. */
int roles_open(const struct role *roles, size_t count, const struct job_request *base,
	       const struct job_sink *sinks, int *restarted, struct roles_set **out,
	       struct error *err);
const struct jobs_request *roles_jobs(const struct roles_set *set);
void roles_close(struct roles_set *set); /* NULL is allowed */

#endif
