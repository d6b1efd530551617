/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/checkpoint/owner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "train/checkpoint/owner_claim.h"

#define TRIES 20	  /* attempts while other runs compete for the directory */
#define END_WAIT_MS 10000 /* for a process that is about to end */
#define POLL_MS 100
#define SETTLE_MS 300
#define MISSING_POLLS 10

struct owner {
	char *path;
	char host[128], boot[128], token[33], scheduler[32];
	char *job;
	int attempt;
	int64_t renewals;
	bool lost;
};

static void pause_ms(int ms)
{
	nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

/* ---- the file ---- */

static char *claim_text(const struct owner *owner)
{
	JSON_AUTO json = json_pack(
		"{s:s, s:o, s:o, s:i, s:o, s:s, s:I, s:I, s:s, s:I, s:I}", "format",
		"berth.owner/1", "scheduler", json_text(owner->scheduler), "job",
		json_text(owner->job), "attempt", owner->attempt, "host", json_text(owner->host),
		"boot", owner->boot, "pid", (json_int_t)getpid(), "started",
		(json_int_t)claim_process_started(getpid()), "token", owner->token, "renewals",
		(json_int_t)owner->renewals, "renewed", (json_int_t)time(NULL));

	return json ? json_dumps(json, JSON_INDENT(2)) : NULL;
}

/* Write our claim to a temporary file. *aside is its name, malloced; *now is the file system's
 * time. */
static int write_claim_aside(struct owner *owner, char **aside, struct timespec *now,
			     struct error *err)
{
	char *text = claim_text(owner);
	struct stat info;
	int rc = 0, fd = text ? file_create_temp(owner->path, 0666, aside) : -1;

	if (fd < 0) {
		rc = text ? error_set(err, ERR_OUTPUT, "cannot create %s: %s", owner->path,
				      strerror(errno))
			  : error_memory(err, "the .owner file");
		free(text);
		return rc;
	}
	if (file_write_all(fd, text, strlen(text)) || file_write_all(fd, "\n", 1) ||
	    fstat(fd, &info))
		rc = error_set(err, ERR_OUTPUT, "cannot write %s: %s", owner->path,
			       strerror(errno));
	if (close(fd) && !rc)
		rc = error_set(err, ERR_OUTPUT, "cannot write %s: %s", owner->path,
			       strerror(errno));
	free(text);
	if (rc) {
		unlink(*aside);
		free(*aside);
		*aside = NULL;
	} else {
		*now = info.st_mtim;
	}
	return rc;
}

/* Link the temporary file to its place. Return 1 if another claim is there, or -1 with errno. */
static int link_claim(const char *aside, const char *path)
{
	if (!link(aside, path))
		return 0;
	if (errno == EEXIST)
		return 1;
	/* The file system has no links. */
	if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS || errno == EMLINK) {
		if (!access(path, F_OK))
			return 1;
		return rename(aside, path);
	}
	return -1;
}

/* ---- takeover ---- */

/* Is word in the comma-separated list? */
static bool list_contains(const char *list, const char *word)
{
	size_t size = strlen(word);

	for (const char *at = list; size && *at; at += strspn(at, ", ")) {
		size_t length = strcspn(at, ", ");

		if (length == size && !strncmp(at, word, size))
			return true;
		at += length;
	}
	return false;
}

static int set_owned_error(const struct owner_request *request, const struct claim *claim,
			   const char *why, struct error *err)
{
	char claimant[600];

	claim_name(claim, claimant, sizeof claimant);
	return error_set(err, ERR_OUTPUT,
			 "--ckpt %s is in use by %s: %s. Stop that run, choose another directory, "
			 "or pass --take-over if you are sure that the run has ended",
			 request->directory, claimant, why);
}

static bool is_cancelled(const struct owner_request *request)
{
	return request->cancel && *request->cancel;
}

/* Does the process exist on this machine? If it belongs to the same job, it may be about to end. */
static bool process_is_alive(const struct owner_request *request, const struct claim *claim,
			     bool same_job)
{
	for (int ms = 0;; ms += POLL_MS) {
		if (claim_process_has_ended(claim))
			return false;
		if (!same_job || ms >= END_WAIT_MS || is_cancelled(request))
			return true;
		pause_ms(POLL_MS);
	}
}

/* Does the file stay unchanged for a while? */
static bool stays_unrenewed(const struct owner *owner, const struct owner_request *request,
			    const struct claim *claim)
{
	int watch_ms = request->watch_ms ? request->watch_ms : OWNER_WATCH_MS;
	struct claim seen;
	char claimant[600], text[1000];

	if (request->notify) {
		claim_name(claim, claimant, sizeof claimant);
		snprintf(text, sizeof text,
			 "note: --ckpt %.200s: waiting %.0f s to see whether %s still renews its "
			 ".owner file",
			 request->directory, watch_ms * 1e-3, claimant);
		request->notify(request->context, text);
	}
	for (int ms = 0; ms < watch_ms; ms += POLL_MS) {
		pause_ms(POLL_MS);
		if (is_cancelled(request))
			return false;

		int found = claim_read(owner->path, NULL, &seen);

		if (!found)
			return true;
		if (found < 0)
			continue;
		if (strcmp(seen.token, claim->token) || seen.renewals != claim->renewals)
			return false;
	}
	return true;
}

static int check_takeover_by_age(const struct owner *owner, const struct owner_request *request,
				 const struct claim *claim, char *why, size_t size,
				 struct error *err)
{
	double stale_s = (request->stale_ms ? request->stale_ms : OWNER_STALE_MS) * 1e-3;
	char text[200];

	if (claim->age_s < -60) {
		snprintf(text, sizeof text,
			 "its .owner file is dated %.0f s in the future: a clock has jumped, so "
			 "the file's age is meaningless",
			 -claim->age_s);
		return set_owned_error(request, claim, text, err);
	}
	if (claim->age_s < stale_s) {
		snprintf(text, sizeof text,
			 "its .owner file was renewed %.0f s ago and expires %.0f s after the last "
			 "renewal",
			 claim->age_s > 0 ? claim->age_s : 0, stale_s);
		return set_owned_error(request, claim, text, err);
	}
	/* A clock may have jumped since: a live run renews its file. */
	if (!stays_unrenewed(owner, request, claim))
		return set_owned_error(request, claim,
				       "its .owner file is being renewed, so that run is alive",
				       err);
	snprintf(why, size, "its .owner file has not been renewed for %.0f s", claim->age_s);
	return 0;
}

/* Return 0 if the claim may be taken over; why then holds the reason, empty if it needs no
 * mention. */
static int check_takeover(const struct owner *owner, const struct owner_request *request,
			  const struct claim *claim, char *why, size_t size, struct error *err)
{
	const struct owner_identity *self = request->self;
	bool same = *claim->job && !strcmp(claim->job, self->job) &&
		    !strcmp(claim->scheduler, self->scheduler);
	int ended;

	*why = 0;
	if (request->take_over) {
		snprintf(why, size, "--take-over");
		return 0;
	}
	if (claim->readable && *claim->boot && !strcmp(claim->boot, owner->boot))
		return process_is_alive(request, claim, same)
			       ? set_owned_error(request, claim, "that process is running", err)
			       : 0;
	if (list_contains(self->predecessors, claim->job) ||
	    (same && claim->attempt < self->attempt))
		return 0;
	/* On another machine, or in another PID namespace: the same job may run twice. */
	if (same)
		return stays_unrenewed(owner, request, claim)
			       ? 0
			       : set_owned_error(request, claim,
						 "its .owner file is being renewed, so another run "
						 "of the same job is alive",
						 err);
	ended = *claim->scheduler && *claim->job && self->job_has_ended
			? self->job_has_ended(self->context, claim->scheduler, claim->job)
			: -1;
	if (ended < 0)
		return check_takeover_by_age(owner, request, claim, why, size, err);
	snprintf(why, size, "%s reports that the job has ended", claim->scheduler);
	return ended ? 0
		     : set_owned_error(request, claim, "its scheduler still lists that job", err);
}

/* Move the file away if it is still the one that was judged. */
static void remove_claim(const struct owner *owner, const struct claim *stale_claim)
{
	char *away = NULL;
	struct claim moved;
	int fd = file_create_temp(owner->path, 0600, &away);

	if (fd < 0)
		return;
	close(fd);
	if (rename(owner->path, away) == 0 && claim_read(away, NULL, &moved) > 0 &&
	    strcmp(moved.token, stale_claim->token))
		link_claim(away, owner->path);
	unlink(away);
	free(away);
}

static void report_takeover(const struct owner_request *request, const struct claim *claim,
			    const char *why)
{
	char claimant[600], text[1000];

	if (!request->notify || !*why)
		return;
	claim_name(claim, claimant, sizeof claimant);
	snprintf(text, sizeof text, "note: taking over --ckpt %.200s from %s: %s",
		 request->directory, claimant, why);
	request->notify(request->context, text);
}

/* Another run that judged the file before this one may just have moved the new file away, and a
 * third may fill the gap. The one whose claim is still there after a while owns the directory. */
static bool confirm_claim(const struct owner *owner)
{
	struct claim claim;

	pause_ms(SETTLE_MS);
	return claim_read(owner->path, NULL, &claim) > 0 && !strcmp(claim.token, owner->token);
}

static int claim_directory(struct owner *owner, const struct owner_request *request,
			   const char *aside, const struct timespec *now, struct error *err)
{
	char why[200];
	struct claim claim;

	for (int i = 0; i < TRIES; i++) {
		int rc = link_claim(aside, owner->path);

		if (rc < 0)
			return error_set(err, ERR_OUTPUT, "cannot create %s: %s", owner->path,
					 strerror(errno));
		if (!rc && (!i || confirm_claim(owner)))
			return 0;
		rc = claim_read(owner->path, now, &claim);
		if (rc < 0)
			return error_set(err, ERR_OUTPUT, "cannot read %s: %s", owner->path,
					 strerror(errno));
		if (!rc)
			continue;
		rc = check_takeover(owner, request, &claim, why, sizeof why, err);
		if (rc)
			return rc;
		report_takeover(request, &claim, why);
		remove_claim(owner, &claim);
	}
	return error_set(err, ERR_OUTPUT, "other runs keep writing %s", owner->path);
}

/* ---- lifetime ---- */

static void owner_free(struct owner *owner)
{
	free(owner->path);
	free(owner->job);
	free(owner);
}

static int owner_new(const struct owner_request *request, struct owner **out, struct error *err)
{
	struct owner *owner = calloc(1, sizeof *owner);
	unsigned char random[16];

	if (!owner)
		return error_memory(err, "the .owner file");
	if (asprintf(&owner->path, "%s/.owner", request->directory) < 0)
		owner->path = NULL;
	owner->job = strdup(request->self->job);
	if (!owner->path || !owner->job) {
		owner_free(owner);
		return error_memory(err, "the .owner file");
	}
	snprintf(owner->scheduler, sizeof owner->scheduler, "%s", request->self->scheduler);
	owner->attempt = request->self->attempt;
	gethostname(owner->host, sizeof owner->host - 1);
	claim_boot(owner->boot, sizeof owner->boot);
	if (getrandom(random, sizeof random, 0) != sizeof random)
		memset(random, 0, sizeof random);
	for (size_t i = 0; i < sizeof random; i++)
		snprintf(owner->token + 2 * i, 3, "%02x", random[i]);
	*out = owner;
	return 0;
}

int owner_acquire(const struct owner_request *request, struct owner **out, struct error *err)
{
	struct owner *owner = NULL;
	struct timespec now;
	char *aside = NULL;
	int rc = owner_new(request, &owner, err);

	if (rc)
		return rc;
	rc = write_claim_aside(owner, &aside, &now, err);
	if (!rc) {
		rc = claim_directory(owner, request, aside, &now, err);
		unlink(aside);
		free(aside);
	}
	if (rc) {
		owner_free(owner);
		return rc;
	}
	log_info(LOG_CHECKPOINT, "took the lease %s for job %s, attempt %d", owner->path,
		 owner->job, owner->attempt);
	*out = owner;
	return 0;
}

/* Read the file again; a run that takes over moves the old file away before its own is there. */
static int read_claim_again(const struct owner *owner, struct claim *claim)
{
	int found = claim_read(owner->path, NULL, claim);

	for (int i = 0; !found && i < MISSING_POLLS; i++) {
		pause_ms(POLL_MS);
		found = claim_read(owner->path, NULL, claim);
	}
	return found;
}

static int rewrite_claim(struct owner *owner, struct error *err)
{
	struct timespec now;
	char *aside;
	int rc = write_claim_aside(owner, &aside, &now, err);

	if (rc)
		return rc;
	if (rename(aside, owner->path)) {
		rc = error_set(err, ERR_IO, "cannot renew %s: %s", owner->path, strerror(errno));
		unlink(aside);
	}
	free(aside);
	return rc;
}

int owner_renew(struct owner *owner, struct error *err)
{
	struct claim claim;
	char claimant[600];
	int found = read_claim_again(owner, &claim),
	    directory = (int)(strrchr(owner->path, '/') - owner->path);

	owner->renewals++;
	if (!owner->lost) {
		/* An unreadable file is not another run's claim. */
		if (found < 0 || (found && !claim.readable))
			return error_set(err, ERR_IO, "cannot read %s", owner->path);
		if (found && !strcmp(claim.token, owner->token)) {
			log_debug(LOG_CHECKPOINT, "renewing the lease %s", owner->path);
			return rewrite_claim(owner, err);
		}
	}
	log_info(LOG_CHECKPOINT, "lost the lease %s", owner->path);
	owner->lost = true;
	/* The run that took over may have ended since: its files must not mix with ours. */
	if (found <= 0)
		return error_set(err, ERR_OUTPUT,
				 "%s is missing: another run took over %.*s and has ended, or the "
				 "file was removed. This run must not write there any longer. "
				 "Start it again to resume from the newest checkpoint",
				 owner->path, directory, owner->path);
	claim_name(&claim, claimant, sizeof claimant);
	return error_set(err, ERR_OUTPUT,
			 "%.*s was taken over by %s, so this run must not write there any longer",
			 directory, owner->path, claimant);
}

bool owner_is_lost(const struct owner *owner)
{
	return owner->lost;
}

void owner_release(struct owner *owner)
{
	struct claim claim;

	if (!owner)
		return;
	if (claim_read(owner->path, NULL, &claim) > 0 && !strcmp(claim.token, owner->token))
		unlink(owner->path);
	owner_free(owner);
}
