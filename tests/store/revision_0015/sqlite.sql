CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	who VARCHAR(255) NOT NULL, 
	action VARCHAR(1000) NOT NULL, 
	status INTEGER NOT NULL, 
	code INTEGER, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE dataset (
	namespace VARCHAR(128) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	document TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	PRIMARY KEY (namespace, name)
);
CREATE TABLE dataset_grant (
	namespace VARCHAR(128) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	node VARCHAR(128) NOT NULL, 
	granted_at DOUBLE NOT NULL, 
	granted_by VARCHAR(255) NOT NULL, 
	reason VARCHAR(1000) NOT NULL, 
	expires_at DOUBLE, 
	revoked_at DOUBLE, 
	revoked_by VARCHAR(255) NOT NULL, 
	PRIMARY KEY (namespace, name, node)
);
CREATE TABLE gateway (
	owner VARCHAR(128) NOT NULL, 
	url VARCHAR(255) NOT NULL, 
	seen_at DOUBLE NOT NULL, own_time DOUBLE, 
	PRIMARY KEY (owner)
);
CREATE TABLE heard_signature (
	signature VARCHAR(64) NOT NULL, 
	request VARCHAR(64) NOT NULL, 
	until DOUBLE NOT NULL, 
	PRIMARY KEY (signature)
);
CREATE TABLE installation (
	id VARCHAR(36) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE job (
	job_id VARCHAR(128) NOT NULL, 
	flow_id VARCHAR(255) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	outcome VARCHAR(16), 
	created_at DOUBLE NOT NULL, 
	due_at DOUBLE, 
	version INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	spec TEXT NOT NULL, 
	state TEXT NOT NULL, 
	PRIMARY KEY (job_id)
);
CREATE TABLE job_audit (
	sender VARCHAR(128) NOT NULL, 
	audit_id VARCHAR(128) NOT NULL, 
	job_id VARCHAR(128) NOT NULL, 
	PRIMARY KEY (sender, audit_id)
);
CREATE TABLE local_job (
	job_id VARCHAR(128) NOT NULL, 
	flow_id VARCHAR(255) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	outcome VARCHAR(16), 
	created_at DOUBLE NOT NULL, 
	due_at DOUBLE, 
	version INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	spec TEXT NOT NULL, 
	state TEXT NOT NULL, 
	PRIMARY KEY (job_id)
);
CREATE TABLE model (
	model_id VARCHAR(128) NOT NULL, 
	version VARCHAR(128) NOT NULL, 
	role VARCHAR(64) NOT NULL, 
	idx INTEGER NOT NULL, 
	job_id VARCHAR(128) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	deployed_at DOUBLE, 
	granted TEXT NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (model_id, version, role, idx)
);
CREATE TABLE provider (
	provider_key VARCHAR(255) NOT NULL, 
	document TEXT NOT NULL, 
	updated_at DOUBLE NOT NULL, 
	PRIMARY KEY (provider_key)
);
CREATE TABLE provider_owner (
	name VARCHAR(128) NOT NULL, 
	owner VARCHAR(255) NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE provider_revision (
	provider_key VARCHAR(255) NOT NULL, 
	number INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	author VARCHAR(255) NOT NULL, 
	action VARCHAR(16) NOT NULL, 
	reason VARCHAR(1000) NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (provider_key, number)
);
CREATE TABLE resource_claim (
	job_id VARCHAR(128) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	cpu BIGINT NOT NULL, 
	memory BIGINT NOT NULL, 
	disk BIGINT NOT NULL, 
	priority INTEGER NOT NULL, 
	since DOUBLE NOT NULL, 
	asked_at DOUBLE NOT NULL, 
	held_at DOUBLE, 
	scheduler VARCHAR(128) NOT NULL, 
	reason TEXT NOT NULL, further TEXT, 
	PRIMARY KEY (job_id)
);
CREATE TABLE resource_engine (
	engine VARCHAR(255) NOT NULL, 
	cpu DOUBLE NOT NULL, 
	memory BIGINT NOT NULL, 
	seen_at DOUBLE NOT NULL, 
	PRIMARY KEY (engine)
);
CREATE TABLE resource_pool (
	id INTEGER NOT NULL, 
	ignored INTEGER NOT NULL, 
	repaired INTEGER NOT NULL, 
	expired INTEGER NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE route_export (
	id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE route_version (
	number INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	author VARCHAR(255) NOT NULL, 
	reason VARCHAR(1000) NOT NULL, 
	source VARCHAR(16) NOT NULL, 
	text TEXT NOT NULL, 
	PRIMARY KEY (number)
);
CREATE TABLE run (
	run_id VARCHAR(128) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	token VARCHAR(64) NOT NULL, 
	job_id VARCHAR(128) NOT NULL, 
	task_id VARCHAR(128) NOT NULL, 
	role VARCHAR(64) NOT NULL, 
	idx INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	owner VARCHAR(255) NOT NULL, 
	PRIMARY KEY (run_id), 
	UNIQUE (name)
);
CREATE TABLE submission (
	job_id VARCHAR(128) NOT NULL, 
	flow_id VARCHAR(255) NOT NULL, 
	scheduler VARCHAR(128) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	PRIMARY KEY (job_id)
);
CREATE TABLE task (
	task_id VARCHAR(128) NOT NULL, 
	job_id VARCHAR(128) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	attempt INTEGER NOT NULL, 
	PRIMARY KEY (task_id)
);
CREATE TABLE timeline (
	id INTEGER NOT NULL, 
	job_id VARCHAR(128) NOT NULL, 
	side VARCHAR(16) NOT NULL, 
	at DOUBLE NOT NULL, 
	event VARCHAR(255) NOT NULL, 
	actor VARCHAR(255) NOT NULL, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE token (
	id VARCHAR(16) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE, 
	revoked_at DOUBLE, 
	PRIMARY KEY (id), 
	UNIQUE (digest)
);
CREATE TABLE webhook (
	"key" VARCHAR(64) NOT NULL, 
	number BIGINT NOT NULL, 
	holder VARCHAR(255) NOT NULL, 
	until DOUBLE NOT NULL, 
	PRIMARY KEY ("key")
);
CREATE INDEX job_due ON job (due_at);
CREATE INDEX job_flow ON job (flow_id, created_at);
CREATE INDEX job_created ON job (created_at);
CREATE INDEX local_job_due ON local_job (due_at);
CREATE INDEX local_job_flow ON local_job (flow_id, created_at);
CREATE INDEX local_job_created ON local_job (created_at);
CREATE INDEX task_job ON task (job_id);
CREATE INDEX run_token ON run (token);
CREATE INDEX run_job ON run (job_id);
CREATE INDEX run_task ON run (task_id);
CREATE INDEX run_status ON run (status);
CREATE INDEX timeline_job ON timeline (job_id, id);
CREATE INDEX model_job ON model (job_id);
CREATE INDEX job_status ON job (status, outcome, created_at);
CREATE INDEX local_job_status ON local_job (status, outcome, created_at);
CREATE INDEX task_status ON task (status);
CREATE INDEX job_audit_job ON job_audit (job_id);
CREATE INDEX heard_signature_until ON heard_signature (until);
