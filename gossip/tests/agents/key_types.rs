//! Certificates of other authorities than `grapevine ca`: RSA and ECDSA, as cert-manager makes them.

use crate::running::Running;
use base64::Engine as _;
use grapevine_gossip::identity::Identity;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SignatureAlgorithm,
};

/// PKCS #8 of a 2,048-bit key that nothing but this test knows; the library cannot make one.
const RSA_KEY: &str = include_str!("rsa-key-of-tests.pem");
/// Bytes of PKCS #8 before the PKCS #1 key that it wraps, at this length of key.
const PKCS8_HEAD: usize = 26;

fn authority(algorithm: &'static SignatureAlgorithm) -> CertifiedIssuer<'static, KeyPair> {
    let key = KeyPair::generate_for(algorithm).expect("a key");
    signed_by_itself(key)
}

fn signed_by_itself(key: KeyPair) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, key).expect("an authority")
}

/// As the CSI driver of cert-manager asks for it: names alone, no subject.
fn leaf(authority: &CertifiedIssuer<'static, KeyPair>, replica: &str, key: &KeyPair) -> String {
    let names = [format!("{replica}.demo"), "demo".to_owned()];
    let mut params = CertificateParams::new(names).expect("names");
    params.distinguished_name = DistinguishedName::new();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.signed_by(key, authority).expect("a leaf").pem()
}

/// The driver's default form of keys, which rcgen does not write.
fn pkcs1(pkcs8: &KeyPair) -> String {
    let der = &pkcs8.serialized_der()[PKCS8_HEAD..];
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN RSA PRIVATE KEY-----\n{text}\n-----END RSA PRIVATE KEY-----\n")
}

fn rsa() -> KeyPair {
    KeyPair::from_pem(RSA_KEY).expect("a key")
}

/// Two replicas with certificates of one authority find each other.
async fn meet(
    authority: &CertifiedIssuer<'static, KeyPair>,
    one: (KeyPair, String),
    other: (KeyPair, String),
) {
    let identity = |replica, (key, pem): &(KeyPair, String)| {
        Identity::from_pem(
            "demo",
            replica,
            &authority.pem(),
            &leaf(authority, replica, key),
            pem,
        )
        .expect("an identity")
    };
    let first = Running::start(identity("r1", &one), &[]).await;
    let second = Running::start(identity("r2", &other), &[first.seed()]).await;
    first.sees_live(2).await;
    second.sees_live(2).await;
}

fn generated(algorithm: &'static SignatureAlgorithm) -> (KeyPair, String) {
    let key = KeyPair::generate_for(algorithm).expect("a key");
    let pem = key.serialize_pem();
    (key, pem)
}

#[tokio::test]
async fn replicas_with_ecdsa_and_ed25519_keys_meet() {
    let authority = authority(&PKCS_ECDSA_P256_SHA256);
    meet(
        &authority,
        generated(&PKCS_ECDSA_P256_SHA256),
        generated(&PKCS_ECDSA_P384_SHA384),
    )
    .await;
    meet(
        &authority,
        generated(&PKCS_ECDSA_P256_SHA256),
        generated(&PKCS_ED25519),
    )
    .await;
}

#[tokio::test]
async fn replicas_with_rsa_keys_meet_whatever_the_form_of_the_file() {
    let both = || [(rsa(), pkcs1(&rsa())), (rsa(), RSA_KEY.to_owned())];
    for authority in [authority(&PKCS_ECDSA_P256_SHA256), signed_by_itself(rsa())] {
        let [one, other] = both();
        meet(&authority, one, other).await;
    }
}
