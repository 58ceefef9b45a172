
CREATE TABLE alembic_version (
    version_num character varying(32) NOT NULL
);

CREATE TABLE application (
    number bigint NOT NULL,
    partner character varying(128) NOT NULL COLLATE pg_catalog."C",
    side character varying(16) NOT NULL COLLATE pg_catalog."C",
    kind character varying(16) NOT NULL COLLATE pg_catalog."C",
    id character varying(128) NOT NULL COLLATE pg_catalog."C",
    status character varying(16) NOT NULL COLLATE pg_catalog."C",
    address character varying(64) NOT NULL,
    jobs integer NOT NULL,
    due_at double precision,
    version integer NOT NULL,
    document text NOT NULL
);

CREATE TABLE application_job (
    job_id character varying(128) NOT NULL COLLATE pg_catalog."C",
    number bigint NOT NULL,
    permit boolean NOT NULL
);

CREATE SEQUENCE application_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

ALTER SEQUENCE application_number_seq OWNED BY application.number;

CREATE TABLE audit (
    id bigint NOT NULL,
    at double precision NOT NULL,
    who character varying(255) NOT NULL,
    action character varying(1000) NOT NULL,
    status integer NOT NULL,
    code integer,
    detail text NOT NULL,
    hash character varying(64) COLLATE pg_catalog."C"
);

CREATE SEQUENCE audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

ALTER SEQUENCE audit_id_seq OWNED BY audit.id;

CREATE TABLE dataset (
    namespace character varying(128) NOT NULL COLLATE pg_catalog."C",
    name character varying(255) NOT NULL COLLATE pg_catalog."C",
    document text NOT NULL,
    created_at double precision NOT NULL
);

CREATE TABLE dataset_grant (
    namespace character varying(128) NOT NULL COLLATE pg_catalog."C",
    name character varying(255) NOT NULL COLLATE pg_catalog."C",
    node character varying(128) NOT NULL COLLATE pg_catalog."C",
    granted_at double precision NOT NULL,
    granted_by character varying(255) NOT NULL,
    reason character varying(1000) NOT NULL,
    expires_at double precision,
    revoked_at double precision,
    revoked_by character varying(255) NOT NULL
);

CREATE TABLE gateway (
    owner character varying(128) NOT NULL COLLATE pg_catalog."C",
    url character varying(255) NOT NULL COLLATE pg_catalog."C",
    seen_at double precision NOT NULL
);

CREATE TABLE heard_signature (
    signature character varying(64) NOT NULL COLLATE pg_catalog."C",
    request character varying(64) NOT NULL COLLATE pg_catalog."C",
    until double precision NOT NULL
);

CREATE TABLE installation (
    id character varying(36) NOT NULL,
    created_at double precision NOT NULL
);

CREATE TABLE job (
    job_id character varying(128) NOT NULL COLLATE pg_catalog."C",
    flow_id character varying(255) NOT NULL COLLATE pg_catalog."C",
    status character varying(16) NOT NULL COLLATE pg_catalog."C",
    outcome character varying(16) COLLATE pg_catalog."C",
    created_at double precision NOT NULL,
    due_at double precision,
    version integer NOT NULL,
    digest character varying(64) NOT NULL COLLATE pg_catalog."C",
    spec text NOT NULL,
    state text NOT NULL,
    words character varying(600) DEFAULT '…'::character varying NOT NULL,
    reason character varying(64) COLLATE pg_catalog."C"
);

CREATE TABLE job_audit (
    sender character varying(128) NOT NULL COLLATE pg_catalog."C",
    audit_id character varying(128) NOT NULL COLLATE pg_catalog."C",
    job_id character varying(128) NOT NULL COLLATE pg_catalog."C"
);

CREATE TABLE local_job (
    job_id character varying(128) NOT NULL COLLATE pg_catalog."C",
    flow_id character varying(255) NOT NULL COLLATE pg_catalog."C",
    status character varying(16) NOT NULL COLLATE pg_catalog."C",
    outcome character varying(16) COLLATE pg_catalog."C",
    created_at double precision NOT NULL,
    due_at double precision,
    version integer NOT NULL,
    digest character varying(64) NOT NULL COLLATE pg_catalog."C",
    spec text NOT NULL,
    state text NOT NULL,
    words character varying(600) DEFAULT '…'::character varying NOT NULL,
    reason character varying(64) COLLATE pg_catalog."C"
);

CREATE TABLE model (
    model_id character varying(128) NOT NULL COLLATE pg_catalog."C",
    version character varying(128) NOT NULL COLLATE pg_catalog."C",
    role character varying(64) NOT NULL COLLATE pg_catalog."C",
    idx integer NOT NULL,
    job_id character varying(128) NOT NULL COLLATE pg_catalog."C",
    created_at double precision NOT NULL,
    deployed_at double precision,
    granted text NOT NULL,
    document text NOT NULL
);

CREATE TABLE platform_report (
    node character varying(128) NOT NULL COLLATE pg_catalog."C",
    author character varying(255) NOT NULL,
    stored_at double precision NOT NULL,
    summary text NOT NULL,
    envelope text NOT NULL
);

CREATE TABLE provider (
    provider_key character varying(255) NOT NULL COLLATE pg_catalog."C",
    document text NOT NULL,
    updated_at double precision NOT NULL
);

CREATE TABLE provider_owner (
    name character varying(128) NOT NULL COLLATE pg_catalog."C",
    owner character varying(255) NOT NULL COLLATE pg_catalog."C"
);

CREATE TABLE provider_revision (
    provider_key character varying(255) NOT NULL COLLATE pg_catalog."C",
    number integer NOT NULL,
    at double precision NOT NULL,
    author character varying(255) NOT NULL,
    action character varying(16) NOT NULL COLLATE pg_catalog."C",
    reason character varying(1000) NOT NULL,
    document text NOT NULL
);

CREATE TABLE resource_claim (
    job_id character varying(128) NOT NULL COLLATE pg_catalog."C",
    state character varying(16) NOT NULL COLLATE pg_catalog."C",
    cpu bigint NOT NULL,
    memory bigint NOT NULL,
    disk bigint NOT NULL,
    priority integer NOT NULL,
    since double precision NOT NULL,
    asked_at double precision NOT NULL,
    held_at double precision,
    scheduler character varying(128) NOT NULL COLLATE pg_catalog."C",
    reason text NOT NULL,
    further text,
    gpu bigint DEFAULT '0'::bigint NOT NULL
);

CREATE TABLE resource_engine (
    engine character varying(255) NOT NULL COLLATE pg_catalog."C",
    cpu double precision NOT NULL,
    memory bigint NOT NULL,
    seen_at double precision NOT NULL,
    gpu bigint DEFAULT '0'::bigint NOT NULL
);

CREATE TABLE resource_pool (
    id integer NOT NULL,
    ignored integer NOT NULL,
    repaired integer NOT NULL,
    expired integer NOT NULL
);

CREATE TABLE route_export (
    owner character varying(128) NOT NULL COLLATE pg_catalog."C",
    number integer NOT NULL,
    digest character varying(64) NOT NULL COLLATE pg_catalog."C"
);

CREATE TABLE route_version (
    number integer NOT NULL,
    at double precision NOT NULL,
    author character varying(255) NOT NULL,
    reason character varying(1000) NOT NULL,
    source character varying(16) NOT NULL COLLATE pg_catalog."C",
    text text NOT NULL
);

CREATE TABLE run (
    run_id character varying(128) NOT NULL COLLATE pg_catalog."C",
    name character varying(64) NOT NULL,
    token character varying(64) NOT NULL COLLATE pg_catalog."C",
    job_id character varying(128) NOT NULL COLLATE pg_catalog."C",
    task_id character varying(128) NOT NULL COLLATE pg_catalog."C",
    role character varying(64) NOT NULL COLLATE pg_catalog."C",
    idx integer NOT NULL,
    attempt integer NOT NULL,
    status character varying(16) NOT NULL COLLATE pg_catalog."C",
    owner character varying(255) NOT NULL COLLATE pg_catalog."C",
    state text,
    "position" integer
);

CREATE TABLE submission (
    job_id character varying(128) NOT NULL COLLATE pg_catalog."C",
    flow_id character varying(255) NOT NULL COLLATE pg_catalog."C",
    scheduler character varying(128) NOT NULL COLLATE pg_catalog."C",
    created_at double precision NOT NULL
);

CREATE TABLE task (
    task_id character varying(128) NOT NULL COLLATE pg_catalog."C",
    job_id character varying(128) NOT NULL COLLATE pg_catalog."C",
    name character varying(255) NOT NULL COLLATE pg_catalog."C",
    status character varying(16) NOT NULL COLLATE pg_catalog."C",
    attempt integer NOT NULL,
    state text,
    "position" integer
);

CREATE TABLE template (
    name character varying(128) NOT NULL COLLATE pg_catalog."C",
    author character varying(255) NOT NULL,
    saved_at double precision NOT NULL,
    job text NOT NULL
);

CREATE TABLE timeline (
    id bigint NOT NULL,
    job_id character varying(128) NOT NULL COLLATE pg_catalog."C",
    side character varying(16) NOT NULL COLLATE pg_catalog."C",
    at double precision NOT NULL,
    event character varying(255) NOT NULL COLLATE pg_catalog."C",
    actor character varying(255) NOT NULL COLLATE pg_catalog."C",
    detail text NOT NULL
);

CREATE SEQUENCE timeline_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

ALTER SEQUENCE timeline_id_seq OWNED BY timeline.id;

CREATE TABLE token (
    id character varying(16) NOT NULL,
    name character varying(255) NOT NULL COLLATE pg_catalog."C",
    role character varying(16) NOT NULL COLLATE pg_catalog."C",
    digest character varying(64) NOT NULL COLLATE pg_catalog."C",
    created_at double precision NOT NULL,
    expires_at double precision,
    revoked_at double precision
);

CREATE TABLE webhook (
    key character varying(64) NOT NULL COLLATE pg_catalog."C",
    number bigint NOT NULL,
    holder character varying(255) NOT NULL COLLATE pg_catalog."C",
    until double precision NOT NULL
);

ALTER TABLE ONLY application ALTER COLUMN number SET DEFAULT nextval('application_number_seq'::regclass);

ALTER TABLE ONLY audit ALTER COLUMN id SET DEFAULT nextval('audit_id_seq'::regclass);

ALTER TABLE ONLY timeline ALTER COLUMN id SET DEFAULT nextval('timeline_id_seq'::regclass);

INSERT INTO alembic_version VALUES ('0023_states_in_rows');

INSERT INTO dataset VALUES ('ns', '表', '{"namespace":"ns","name":"表","columns":["id","x"],"count":3,"partitions":1,"meta":{"match_id_name":"id"},"checksum":"ab","size":30,"created_at":"2026-01-02T03:04:05.678901+00:00","origin":"file:x.csv","disabled":false,"types":["string","float"],"sid":"","description":""}', 1795393249.112277);

INSERT INTO dataset_grant VALUES ('ns', '表', 'B', 1767323045.678901, 'ann', 'because', NULL, NULL, '');

INSERT INTO installation VALUES ('6e7f02d2-a494-4e61-bc12-786ab2228e43', 1795393249.1193826);

INSERT INTO job VALUES ('job-1', 'flow', 'PENDING', NULL, 1767323045.678901, 1767323057.678901, 1, 'dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd', '{"job_id":"job-1","flow_id":"flow","dag":{"nodes":[{"name":"a","component":{"provider":"p","version":"1","name":"C"},"inputs":[],"outputs":[{"type":"dataset","key":"d"}]},{"name":"b","component":{"provider":"p","version":"1","name":"D"},"inputs":[{"type":"dataset","task":"a","key":"d"}],"outputs":[]}],"version":"2.0"},"parties":[{"role":"guest","index":0,"node":"A"},{"role":"host","index":0,"node":"B"}],"initiator":"A","initiator_role":"guest","scheduler":"A","protocol":"bfia","trace_id":"trace","job_params":{"common":{"sync_type":"poll"}},"task_params":{"common":{"a":{"名字":["x",1,2.5,null,true,{"k":"值"}]}}},"version":"2.0.0","old_job_id":"","unread":[]}', '{"status":"PENDING","created_at":"2026-01-02T03:04:05.678901+00:00","nodes":{"A":{"node":"A","create":{"state":"SENT","sent_at":"2026-01-02T03:04:05.678901+00:00","tries":1}},"B":{"node":"B","create":{"state":"SENT","sent_at":"2026-01-02T03:04:05.678901+00:00","tries":1}}},"tasks":{"a":{"name":"a","task_id":"task_job-1_a","status":"PENDING","nodes":{"A":{"node":"A","roles":{"guest":"RUNNING"},"heard_at":"2026-01-02T03:04:05.678901+00:00"}},"failure":{"reason":"EXIT_1","message":"died","node":"A","role":"guest","task":"a","exit_code":1}},"b":{"name":"b","task_id":"task_job-1_b","status":"PENDING","nodes":{"A":{"node":"A","roles":{"guest":"RUNNING"},"heard_at":"2026-01-02T03:04:05.678901+00:00"}},"failure":{"reason":"EXIT_1","message":"died","node":"A","role":"guest","task":"b","exit_code":1}}},"ending":{"outcome":"FAILED","at":"2026-01-02T03:04:05.678901+00:00"},"digest":"dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"}', '|=job-1|~flow|>a|>b|+p/c|+p/d|', NULL);

INSERT INTO job_audit VALUES ('B', 'q1', 'job-1');

INSERT INTO local_job VALUES ('job-1', 'flow', 'RUNNING', NULL, 1767323045.678901, 1767323046.678901, 1, 'dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd', '{"job_id":"job-1","flow_id":"flow","dag":{"nodes":[{"name":"a","component":{"provider":"p","version":"1","name":"C"},"inputs":[],"outputs":[{"type":"dataset","key":"d"}]},{"name":"b","component":{"provider":"p","version":"1","name":"D"},"inputs":[{"type":"dataset","task":"a","key":"d"}],"outputs":[]}],"version":"2.0"},"parties":[{"role":"guest","index":0,"node":"A"},{"role":"host","index":0,"node":"B"}],"initiator":"A","initiator_role":"guest","scheduler":"A","protocol":"bfia","trace_id":"trace","job_params":{"common":{"sync_type":"poll"}},"task_params":{"common":{"a":{"名字":["x",1,2.5,null,true,{"k":"值"}]}}},"version":"2.0.0","old_job_id":"","unread":[]}', '{"node":"A","status":"RUNNING","created_at":"2026-01-02T03:04:05.678901+00:00","digest":"dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd","runs":[{"run_id":"rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr","name":"bfia-0123456789abcdef","task_id":"task_1","task_name":"a","party":{"role":"guest","index":0,"node":"A"},"component":{"provider":"p","version":"1","name":"C"},"image":"image:1","created_at":"2026-01-02T03:04:05.678901+00:00","status":"RUNNING","parameters":{"x":[1,null,"值"]},"inputs":{"train":{"namespace":"n","name":"m"}},"limits":{"cpu":0.5,"memory":null},"exit":{"code":137,"signal":9,"oom_killed":true,"started_at":"2026-01-02T03:04:05.678901+00:00","finished_at":"2026-01-02T03:04:05.678901+00:00","missing_outputs":["model"]},"told":{"status":"RUNNING","call":{"state":"LOST","sent_at":"2026-01-02T03:04:05.678901+00:00","due_at":"2026-01-02T03:04:05.678901+00:00","tries":2,"reason":"r","message":"m"}}}],"warnings":["w"]}', '|=job-1|~flow|>a|>b|+p/c|+p/d|', NULL);

INSERT INTO provider VALUES ('acme:1.0.0@docker', '{"name":"acme","version":"1.0.0","device":"docker","protocol":"bfia","metadata":{"base_url":"","image":"acme:1.0.0"},"images":{},"components_description":{"Algo":{"componentName":"Algo","title":"Algo","provider":"acme","version":"1.0.0","roleList":["guest","host"],"desVersion":"1.2.0","storageEngine":["s3"],"inputParam":[{"name":"p","title":"p","type":"string","optional":"true"}],"inputData":[{"name":"train_data","category":"dataset","dataFormat":["csv"]}],"outputData":[{"name":"train_data","category":"dataset","dataFormat":["csv"]},{"name":"model","category":"model","dataFormat":["csv"]}],"result":[{"resultCode":"0","resultMessage":"ok"}]}},"warnings":[]}', 1767323045.678901);

INSERT INTO provider_owner VALUES ('acme', 'ann');

INSERT INTO provider_revision VALUES ('acme:1.0.0@docker', 1, 1767323045.678901, 'ann', 'registered', 'first', '{"name":"acme","version":"1.0.0","device":"docker","protocol":"bfia","metadata":{"base_url":"","image":"acme:1.0.0"},"images":{},"components_description":{"Algo":{"componentName":"Algo","title":"Algo","provider":"acme","version":"1.0.0","roleList":["guest","host"],"desVersion":"1.2.0","storageEngine":["s3"],"inputParam":[{"name":"p","title":"p","type":"string","optional":"true"}],"inputData":[{"name":"train_data","category":"dataset","dataFormat":["csv"]}],"outputData":[{"name":"train_data","category":"dataset","dataFormat":["csv"]},{"name":"model","category":"model","dataFormat":["csv"]}],"result":[{"resultCode":"0","resultMessage":"ok"}]}},"warnings":[]}');

INSERT INTO resource_pool VALUES (1, 0, 0, 0);

INSERT INTO route_version VALUES (1, 1767323045.678901, 'ann', 'first', 'file', 'routes: []
');

INSERT INTO run VALUES ('rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr', 'bfia-0123456789abcdef', '', 'job-1', 'task_1', 'guest', 0, 0, 'RUNNING', '', NULL, NULL);

INSERT INTO submission VALUES ('job-1', 'flow', 'A', 1767323045.678901);

INSERT INTO task VALUES ('task_job-1_a', 'job-1', 'a', 'PENDING', 0, NULL, NULL);
INSERT INTO task VALUES ('task_job-1_b', 'job-1', 'b', 'PENDING', 0, NULL, NULL);

INSERT INTO timeline VALUES (1, 'job-1', 'scheduler', 1767323045.678901, 'job created', 'me', '{"text":"值"}');

INSERT INTO token VALUES ('t1', 'ann', 'admin', 'dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd', 1767323045.678901, NULL, NULL);

SELECT pg_catalog.setval('application_number_seq', 1, false);

SELECT pg_catalog.setval('audit_id_seq', 1, false);

SELECT pg_catalog.setval('timeline_id_seq', 2, false);

ALTER TABLE ONLY alembic_version
    ADD CONSTRAINT alembic_version_pkey PRIMARY KEY (version_num);

ALTER TABLE ONLY application
    ADD CONSTRAINT application_id UNIQUE (partner, side, kind, id);

ALTER TABLE ONLY application_job
    ADD CONSTRAINT application_job_pkey PRIMARY KEY (job_id, number);

ALTER TABLE ONLY application
    ADD CONSTRAINT application_pkey PRIMARY KEY (number);

ALTER TABLE ONLY audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);

ALTER TABLE ONLY dataset_grant
    ADD CONSTRAINT dataset_grant_pkey PRIMARY KEY (namespace, name, node);

ALTER TABLE ONLY dataset
    ADD CONSTRAINT dataset_pkey PRIMARY KEY (namespace, name);

ALTER TABLE ONLY gateway
    ADD CONSTRAINT gateway_pkey PRIMARY KEY (owner);

ALTER TABLE ONLY heard_signature
    ADD CONSTRAINT heard_signature_pkey PRIMARY KEY (signature);

ALTER TABLE ONLY installation
    ADD CONSTRAINT installation_pkey PRIMARY KEY (id);

ALTER TABLE ONLY job_audit
    ADD CONSTRAINT job_audit_pkey PRIMARY KEY (sender, audit_id);

ALTER TABLE ONLY job
    ADD CONSTRAINT job_pkey PRIMARY KEY (job_id);

ALTER TABLE ONLY local_job
    ADD CONSTRAINT local_job_pkey PRIMARY KEY (job_id);

ALTER TABLE ONLY model
    ADD CONSTRAINT model_pkey PRIMARY KEY (model_id, version, role, idx);

ALTER TABLE ONLY platform_report
    ADD CONSTRAINT platform_report_pkey PRIMARY KEY (node);

ALTER TABLE ONLY provider_owner
    ADD CONSTRAINT provider_owner_pkey PRIMARY KEY (name);

ALTER TABLE ONLY provider
    ADD CONSTRAINT provider_pkey PRIMARY KEY (provider_key);

ALTER TABLE ONLY provider_revision
    ADD CONSTRAINT provider_revision_pkey PRIMARY KEY (provider_key, number);

ALTER TABLE ONLY resource_claim
    ADD CONSTRAINT resource_claim_pkey PRIMARY KEY (job_id);

ALTER TABLE ONLY resource_engine
    ADD CONSTRAINT resource_engine_pkey PRIMARY KEY (engine);

ALTER TABLE ONLY resource_pool
    ADD CONSTRAINT resource_pool_pkey PRIMARY KEY (id);

ALTER TABLE ONLY route_export
    ADD CONSTRAINT route_export_pkey PRIMARY KEY (owner);

ALTER TABLE ONLY route_version
    ADD CONSTRAINT route_version_pkey PRIMARY KEY (number);

ALTER TABLE ONLY run
    ADD CONSTRAINT run_name_key UNIQUE (name);

ALTER TABLE ONLY run
    ADD CONSTRAINT run_pkey PRIMARY KEY (run_id);

ALTER TABLE ONLY submission
    ADD CONSTRAINT submission_pkey PRIMARY KEY (job_id);

ALTER TABLE ONLY task
    ADD CONSTRAINT task_pkey PRIMARY KEY (task_id);

ALTER TABLE ONLY template
    ADD CONSTRAINT template_pkey PRIMARY KEY (name);

ALTER TABLE ONLY timeline
    ADD CONSTRAINT timeline_pkey PRIMARY KEY (id);

ALTER TABLE ONLY token
    ADD CONSTRAINT token_digest_key UNIQUE (digest);

ALTER TABLE ONLY token
    ADD CONSTRAINT token_pkey PRIMARY KEY (id);

ALTER TABLE ONLY webhook
    ADD CONSTRAINT webhook_pkey PRIMARY KEY (key);

CREATE INDEX application_due ON application USING btree (due_at);

CREATE INDEX application_status ON application USING btree (status, kind);

CREATE INDEX heard_signature_until ON heard_signature USING btree (until);

CREATE INDEX job_audit_job ON job_audit USING btree (job_id);

CREATE INDEX job_created ON job USING btree (created_at, job_id);

CREATE INDEX job_due ON job USING btree (due_at);

CREATE INDEX job_flow ON job USING btree (flow_id, created_at);

CREATE INDEX job_reason ON job USING btree (reason, created_at);

CREATE INDEX job_status ON job USING btree (status, outcome, created_at);

CREATE INDEX local_job_created ON local_job USING btree (created_at, job_id);

CREATE INDEX local_job_due ON local_job USING btree (due_at);

CREATE INDEX local_job_flow ON local_job USING btree (flow_id, created_at);

CREATE INDEX local_job_reason ON local_job USING btree (reason, created_at);

CREATE INDEX local_job_status ON local_job USING btree (status, outcome, created_at);

CREATE INDEX model_job ON model USING btree (job_id);

CREATE INDEX run_job ON run USING btree (job_id);

CREATE INDEX run_status ON run USING btree (status);

CREATE INDEX run_task ON run USING btree (task_id);

CREATE INDEX run_token ON run USING btree (token);

CREATE INDEX task_job ON task USING btree (job_id);

CREATE INDEX task_status ON task USING btree (status);

CREATE INDEX timeline_job ON timeline USING btree (job_id, id);

